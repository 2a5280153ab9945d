"""What a run leaves on disk: its ledger, its records, and the words for how episodes end."""
