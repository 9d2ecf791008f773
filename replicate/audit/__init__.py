"""The journal as people read it: shown, selected, verified."""
