"""What people write: tasks and run files, checked before anything starts."""
