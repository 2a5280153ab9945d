"""The access log, always the same."""

import random

rng = random.Random(20260101)
hosts = [f"10.0.{rng.randrange(4)}.{rng.randrange(1, 60)}" for _ in range(40)]
paths = [
    "/",
    "/login",
    "/api/items",
    "/api/items?page=2",
    "/static/app.js",
    "/a b.html",
    '/q?x="y"',
]
with open("access.log", "w") as log:
    for number in range(3000):
        host = hosts[min(int(rng.expovariate(0.12)), 39)]
        status = rng.choices([200, 304, 404, 500, 503], [80, 8, 6, 4, 2])[0]
        stamp = f"{1 + number // 1440:02d}/Jan/2026:{number % 1440 // 60:02d}:{number % 60:02d}:00 +0000"
        path = rng.choice(paths).replace('"', '\\"')
        size = "-" if status == 304 else str(rng.randrange(100, 90000))
        log.write(f'{host} - - [{stamp}] "GET {path} HTTP/1.1" {status} {size} "-" "curl/8"\n')
        if number % 700 == 350:
            log.write("malformed line without anything\n\n")
