"""`rock run`: a run as it goes on, and its live view."""
