"""`rock agents`: the presets, and how to have them."""
