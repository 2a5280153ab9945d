import sqlite3
import sys

db = sqlite3.connect(f"file:{sys.argv[1]}/events.db?mode=ro", uri=True)
events = db.execute("SELECT id, user_id, at, kind, ms, cents FROM events ORDER BY id").fetchall()
users = db.execute("SELECT id, name FROM users ORDER BY id").fetchall()
wanted_events = [
    ("e1", 7, "2025-03-01T09:00:00Z", "login", None, None),
    ("e2", 7, "2025-03-01T09:30:00Z", "view", 125, None),
    ("e3", 8, "2025-03-02T04:59:59Z", "view", 80, None),
    ("e4", 8, "2025-03-02T06:00:00Z", "buy", None, 1999),
    ("e5", None, "2025-03-02T07:00:00Z", "view", 60, None),
    ("e6", 9, "2025-03-01T01:00:00Z", "buy", None, 500),
]
wanted_users = [(7, "Ann"), (8, "Robert"), (9, "Cy; DROP TABLE events")]
keys = [row[1] for row in db.execute("PRAGMA table_info(events)") if row[5]]
sys.exit(events != wanted_events or users != wanted_users or keys != ["id"])
