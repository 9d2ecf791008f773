"""What a traced process tells its parent: a value a line, as JSON.

Guarantees: when `tell` returns, the line has left the process, in one system call, however Python buffers its standard
output (PYTHONUNBUFFERED has `print` write a line and its end apart). Leaves to others: what is told.
"""

from __future__ import annotations

import json
import os
import sys


def tell(value: object) -> None:
    """Write the line to standard output. A pipe takes up to 4,096 bytes whole."""
    line = json.dumps(value).encode() + b"\n"
    assert os.write(sys.stdout.fileno(), line) == len(line)
