"""Runs one fuzzing target under atheris: python tests/fuzz/run_target.py TARGET [libFuzzer's ARGUMENTS and DIRECTORIES]

For example, five minutes, new inputs into a directory of one's own, from the corpus that is kept:

    python tests/fuzz/run_target.py wire_message -max_total_time=300 /tmp/found tests/fuzz/corpus/wire_message

Guarantees: ends with a code other than 0, and leaves the input (-artifact_prefix=), when the oracle finds something.
Leaves nothing else behind: libFuzzer ends its process without a word to Python, so that one is a child of ours.
Leaves to others: which inputs are worth keeping.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DIRECTORY = "REPLICATE_SHM_DIR"
"""Where targets make their files."""
CHILD = "REPLICATE_FUZZ_CHILD"


def fuzz() -> None:
    """Hands the arguments after the target's name to libFuzzer. Does not return."""
    import atheris

    sys.path.insert(0, str(Path(__file__).parents[2]))
    with atheris.instrument_imports(include=["replicate", "receiver_server", "source_server", "update_process"]):
        from tests.fuzz.targets import TARGETS

    from tests.fuzz.oracle import judge

    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: run_target.py TARGET [ARGUMENT...]; targets: {' '.join(TARGETS)}")
    name = sys.argv[1]
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: judge(name, target, data))
    atheris.Fuzz()


def main() -> int:
    """Runs the child in a directory that is removed after it; its exit code."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fuzz.own_directory import OwnDirectory, base

    with OwnDirectory(base(DIRECTORY)) as home:
        command = [sys.executable, __file__, *sys.argv[1:]]
        environment = {**os.environ, DIRECTORY: str(home.path), CHILD: "1"}
        return subprocess.run(command, env=environment, pass_fds=[home.fd], check=False).returncode


if __name__ == "__main__":
    if CHILD in os.environ:
        fuzz()
    else:
        sys.exit(main())
