"""Customers and orders, always the same."""

import csv
import random

rng = random.Random(11)
names = ["Müller, Anna", 'Bo "B" Lee', "Chen", "D'Arcy", "Eve", "Frank\nJr.", "Zoë"]
with open("customers.csv", "w", newline="", encoding="utf-8-sig") as file:
    rows = csv.writer(file)
    rows.writerow(["id", "name", "country"])
    for number, name in enumerate(names):
        rows.writerow([f"{number:03d}", name, rng.choice(["DE", "FR", "de", " FR "])])
with open("orders.csv", "w", newline="") as file:
    rows = csv.writer(file, delimiter=";")
    rows.writerow(["order", "customer", "date", "amount"])
    for number in range(200):
        customer = rng.choice(["000", "001", "2", "003", "4", "005", "099"])
        date = f"2025-{rng.randrange(1, 13):02d}-{rng.randrange(1, 28):02d}"
        amount = f"{rng.randrange(-5, 400)},{rng.randrange(100):02d}"
        rows.writerow([number, customer, date, rng.choice([amount, amount, amount, "", "n/a"])])
