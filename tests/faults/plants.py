"""The harness proved on planted bugs: each is built into a copy of the packages, and the campaign has to find it.

    python -m tests.faults.plants [NAME…]

Guarantees: exit code 0 only when every bug was planted (the text that it replaces is there, once) and found by the part
that is named with it. Refuses to know: how it is found. The reader that trusts the seqno word is planted by
tests/harness/pool_storm.py (PLANTS). Two of the project's list are not here: a cut without a sync makes no difference
(recovery syncs that segment again before anything is written), and words in another byte order.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.places import PACKAGES, ROOT


@dataclass(frozen=True, slots=True)
class Plant:
    """`replacements`: (old, new) in `file`; `part`: module and arguments that must then fail."""

    file: str
    replacements: tuple[tuple[str, str], ...]
    part: tuple[str, ...]


PLANTS: Final[dict[str, Plant]] = {
    "no directory fsync": Plant(
        "replicate/journal/segment.py",
        (("            os.fsync(fd)\n        finally:\n", "            pass\n        finally:\n"),),
        ("tests.faults.crash_states", "--runs", "switch", "--stride", "60", "--samples", "1"),
    ),
    "acknowledge before fsync": Plant(
        "replicate/durability.py",
        (("            self.wait(seqno)\n        elif", "            pass\n        elif"),),
        ("tests.faults.crash_states", "--runs", "durable", "--stride", "3", "--samples", "2"),
    ),
    "SCR outside of the transaction": Plant(
        "replicate/apply_session.py",
        (
            (
                "            self._write_scr(position, csn, defines)\n            if last is None:",
                "            if last is None:",
            ),
            (
                '                hit("apply.after_commit")\n                self._note_schema(defines)\n'
                "                door.finish_batch",
                '                hit("apply.after_commit")\n                self._write_scr(position, csn, defines)\n'
                "                self._note_schema(defines)\n                door.finish_batch",
            ),
        ),
        ("tests.faults.campaign", "--classes", "update", "--rounds", "25", "--seed", "3"),
    ),
    "fsync retried": Plant(
        "replicate/journal/segment.py",
        (
            (
                "            call(self.fd)\n",
                "            try:\n                call(self.fd)\n"
                "            except OSError:\n                call(self.fd)\n",
            ),
        ),
        ("tests.faults.io_errors", "--calls", "fdatasync", "--errors", "EIO"),
    ),
    "pool not repaired behind a killed writer": Plant(
        "replicate/door.py",
        (("            if words[word.INTENT_SEQNO]:\n                self._mend()\n", ""),),
        ("tests.faults.campaign", "--classes", "writer", "--rounds", "14", "--seed", "3"),
    ),
}  # fmt: skip


def plant(name: str, directory: Path) -> None:
    """A copy of the packages and the tests below `directory`, with that bug."""
    for package in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    path = directory / PLANTS[name].file
    text = path.read_text(encoding="utf-8")
    for old, new in PLANTS[name].replacements:
        assert text.count(old) == 1, f"{name}: this stands {text.count(old)} times in {path.name}: {old!r}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def find(name: str, timeout_s: float = 240) -> tuple[bool, str]:
    """Whether the campaign finds it, and what it says last."""
    with tempfile.TemporaryDirectory(prefix="replicate-plant-") as place:
        plant(name, Path(place))
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *PLANTS[name].part],
            cwd=place, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        lines = [line for line in (done.stdout + done.stderr).splitlines() if _tells(line)]
        return done.returncode == 1 and "SyntaxError" not in done.stderr, lines[-1][:160] if lines else ""


def _tells(line: str) -> bool:
    return "Error" in line or "violations" in line or ("must be 0" in line and not line.endswith(" 0"))


def main() -> int:
    missed = 0
    for name in sys.argv[1:] or PLANTS:
        began_s = time.monotonic()
        found, said = find(name)
        missed += not found
        print(f"{name:<42} {'found' if found else 'MISSED':<7} {time.monotonic() - began_s:4.0f} s  {said}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
