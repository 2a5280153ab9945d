"""The sandbox contract on one helper's channel: what every provider of this package shares."""
