"""system/standard_streams.py: whichever of the three are closed, no file of ours gets their numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations

import pytest

PROGRAM = """
import os, sys
closed = [int(one) for one in sys.argv[2].split(",") if one]
tell = os.dup(1)
for fd in closed:
    os.close(fd)
if 1 in closed: sys.stdout = None
if 2 in closed: sys.stderr = None
from replicate.system.standard_streams import hold_standard_streams
hold_standard_streams()
print("lost", file=sys.stdout, flush=True); print("lost", file=sys.stderr, flush=True)
opened = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
null = [fd for fd in range(3) if os.fstat(fd).st_rdev == os.stat(os.devnull).st_rdev]
handed_on = [fd for fd in range(3) if os.get_inheritable(fd)]
os.write(tell, f"{opened > 2} {[one for one in null if one in closed] == closed} {handed_on}".encode())
"""
SETS = [",".join(map(str, some)) for count in range(4) for some in combinations(range(3), count)]


@pytest.mark.parametrize("closed", SETS)
def test_what_prints_writes_into_nothing_of_ours(closed: str, tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "file")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, closed], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.endswith("True True [0, 1, 2]")
    assert os.path.getsize(path) == 0
