"""(see the modules)"""

COMPLETION = "_REPLICATE_COMPLETE"
"""A shell asks in this variable what could be typed next (completion.py): click's own way."""
