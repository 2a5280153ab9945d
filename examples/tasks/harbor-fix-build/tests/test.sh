#!/bin/bash
# Writes the share of checks that passed to /logs/verifier/reward.json.
python3 -I /tests/check.py > /logs/verifier/checks.txt
passed=$(grep -c '^ok' /logs/verifier/checks.txt)
total=$(grep -c . /logs/verifier/checks.txt)
echo "{\"reward\": $(python3 -c "print($passed / $total if $total else 0)")}" > /logs/verifier/reward.json
