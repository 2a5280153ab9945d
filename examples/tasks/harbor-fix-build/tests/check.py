import hashlib
import pathlib
import subprocess
import tempfile

CASES = [
    ({"b.part": "b\n", "a.part": "a\n", "c.txt": "no"}, b"a\nb\n"),
    ({"1.part": "x", "2.part": "y"}, b"x\ny\n"),
    ({"1.part": "x\n\n", "2.part": "\ny\n"}, b"x\n\n\ny\n"),
    ({"10.part": "ten\n", "9.part": "nine\n", "1.part": "é\r\n"}, "é\r\nten\nnine\n".encode()),
]
for parts, expected in CASES:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "src").mkdir()
        for part, text in parts.items():
            (folder / "src" / part).write_bytes(text.encode())
        out = folder / "out"
        subprocess.run(["python3", "/app/build.py", str(folder / "src"), str(out)], timeout=20)
        found = out.read_bytes() if out.exists() else None
        total = pathlib.Path(f"{out}.sum").read_text().split() if found is not None else []
        right = found == expected and total[:1] == [hashlib.sha256(expected).hexdigest()]
        print("ok" if right else f"wrong: {parts}: {found}")
