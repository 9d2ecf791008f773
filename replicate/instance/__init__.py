"""An instance: its directory, its regions, its registered consumers, and the way out."""
