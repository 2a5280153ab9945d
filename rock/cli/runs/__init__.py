"""`rock runs`, `rock show`, `rock diff`: read run directories."""
