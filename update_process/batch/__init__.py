"""Many transactions applied as one."""
