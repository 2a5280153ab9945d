import sys
from pathlib import Path

WANTED = """\
slot,a,b
00:00,10.00,
00:15,25.00,
00:30,25.00,-3.00
00:45,25.00,7.50
01:00,40.00,7.50
01:15,40.00,7.50
01:30,40.00,7.50
01:45,40.00,9.00
02:00,16.00,9.00
"""
found = (Path(sys.argv[1]) / "slots.csv").read_text().replace("\r\n", "\n")
sys.exit(found != WANTED)
