"""HTTP: one server for both planes, and what each path does. The only place that knows HTTP."""
