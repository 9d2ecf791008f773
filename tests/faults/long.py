"""The long form of the fault campaign: `deploy/test --faults [--hours H]`.

    python -m tests.faults.long [--hours H] [--seed N]

Power loss on every file system that this machine can make (as root), a fifth of the time; kill rounds for the rest;
crash states, journal damage, I/O errors and planted bugs, each once, which takes some twenty minutes more.
Guarantees: exit code 0 only when every part ended well; what was left out is said.
Refuses to know: the parts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from typing import Final

PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
POWER_ROUND_S: Final = 8.0
"""About what a round takes, for all three policies on one file system."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.long")
    parser.add_argument("--hours", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    filesystems = [kind for kind in ("ext4", "xfs") if shutil.which(f"mkfs.{kind}", path=PATH)]
    if os.geteuid() != 0:
        print("== no power loss: that needs root", flush=True)
        filesystems = []
    seconds = options.hours * 3600
    rounds = max(1, int(seconds / 5 / max(1, len(filesystems)) / (3 * POWER_ROUND_S)))
    parts: list[tuple[str, ...]] = [
        ("tests.faults.power", "--filesystem", kind, "--rounds", str(rounds), "--seed", str(options.seed))
        for kind in filesystems
    ]
    left_h = options.hours * (0.8 if filesystems else 1.0)
    parts.append(("tests.faults.campaign", "--hours", f"{left_h:g}", "--seed", str(options.seed)))
    if shutil.which("strace"):
        parts.append(("tests.faults.crash_states", "--stride", "2", "--seed", str(options.seed)))
    else:
        print("== no crash states: that needs strace", flush=True)
    parts += [
        ("tests.faults.damage", "--seed", str(options.seed)),
        ("tests.faults.io_errors",),
        ("tests.faults.plants",),
    ]
    failed = []
    for part in parts:
        print(f"== {' '.join(part)}", flush=True)
        if subprocess.run([sys.executable, "-m", *part], check=False).returncode:
            failed.append(part[0])
    print(f"== {'failed: ' + ', '.join(failed) if failed else 'all well'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
