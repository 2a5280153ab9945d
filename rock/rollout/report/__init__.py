"""What people look at: the events of a run, its figures, and runs side by side."""
