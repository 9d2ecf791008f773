"""SQL as text: statements, names, pragmas."""
