"""`rock sandbox`: find the sandboxes of this user or of a server, look into them, work in them."""
