import collections
import re
import sys
from pathlib import Path

LINE = re.compile(r'(\S+) \S+ \S+ \[[^]]*\] "(?:[^"\\]|\\.)*" (\d{3}) (\S+) ')
failed, sizes = collections.Counter(), collections.Counter()
for line in (Path(sys.argv[1]) / "access.log").read_text().splitlines():
    if match := LINE.match(line):
        host, status, size = match.groups()
        failed[host] += status.startswith("5")
        sizes[host] += 0 if size == "-" else int(size)
hosts = sorted((h for h in failed if failed[h]), key=lambda h: (-failed[h], h))[:5]
wanted = [f"{host} {failed[host]} {sizes[host]}" for host in hosts]
found = (Path(sys.argv[1]) / "report.txt").read_text().split("\n")
sys.exit(found != [*wanted, ""])
