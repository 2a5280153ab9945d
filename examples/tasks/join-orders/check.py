import csv
import json
import sys
from decimal import Decimal
from pathlib import Path

folder = Path(sys.argv[1])
with (folder / "customers.csv").open(encoding="utf-8-sig", newline="") as file:
    customers = {int(row["id"]): row for row in csv.DictReader(file)}
wanted = {}
with (folder / "orders.csv").open(newline="") as file:
    for row in csv.DictReader(file, delimiter=";"):
        customer = customers.get(int(row["customer"]))
        try:
            amount = Decimal(row["amount"].replace(",", "."))
        except ArithmeticError:
            continue
        if customer is None or not row["date"] >= "2025-07-01":
            continue
        country = customer["country"].strip().upper()
        name = wanted.setdefault(country, {}).setdefault(customer["name"], [0, Decimal(0)])
        name[0] += 1
        name[1] += amount
found = json.loads((folder / "report.json").read_text(encoding="utf-8"), parse_float=Decimal)
expected = {
    country: [
        {"name": name, "orders": count, "total": total}
        for name, (count, total) in sorted(people.items(), key=lambda item: (-item[1][1], item[0]))
    ]
    for country, people in wanted.items()
}
sys.exit(found != expected)
