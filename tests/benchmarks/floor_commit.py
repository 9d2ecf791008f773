"""What bench_commit.py is measured beside under `--peers floor`: the least that a commit like ours takes, in C.

Needs a C compiler and SQLite's header (Debian's packages gcc and libsqlite3-dev). floor_commit.c says what its ways do
and what they leave out: all that makes a journal one that can be recovered. So what a way of it cannot do is out of
reach of this design on that machine, in whatever language.

Guarantees: the program is that of this checkout. Leaves to others: rounds, rivals.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

PACKAGE: Final = "libsqlite3-dev"
SOURCE: Final = Path(__file__).with_suffix(".c")


def compiled(directory: Path) -> Path:
    """The program, made in `directory`. RuntimeError, with the compiler's words, where it cannot be."""
    program = directory / SOURCE.stem
    words = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(SOURCE), "-lsqlite3"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RuntimeError(f"there is no C compiler (cc); install gcc and {PACKAGE}") from error
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} cannot be compiled; is {PACKAGE} installed?\n{done.stderr}")
    return program
