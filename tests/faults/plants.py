"""The harness proved on planted bugs: each is built into a copy of the packages, and the campaign has to find it.

    python -m tests.faults.plants [--names NAME,…]

Guarantees: a bug counts as found only when it was planted (the text that it replaces is there, once) and the part that
is named with it counted a violation, or was ended by an error of the product. Leaves to others: how it is found.

One of the project's list is not here. **A cut without a sync is no bug** in this format:
recovery syncs the same segment again before its pool lets anybody append (without that sync, too, it is one: "cut
without fsync, nor any after it" in tests/simulation/plants.py); a segment that was cut is sealed, so nothing is written
where the old bytes might come back; and if they come back before that second sync, recovery finds the same torn tail
and cuts it again, in another incarnation. test_disk_faults.py takes the sync out of the recording of a cut, and every
crash state is recovered from; so does the part `crash_states`, and the closing table has its own line for it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.faults.part import parser, run_part
from tests.faults.places import PACKAGES, ROOT
from tests.faults.report import EMPTY

LEAST: Final = ("planted bugs found",)
OF_US: Final = ("failpoints missed", "parts that failed", "pool storms not finished", EMPTY)
"""Figures of a slow machine, or of a bug in the harness: they find nothing."""


_WORDS: Final = '''class _Words:
    """Words that are written in pieces."""

    def __init__(self, view):
        self.view = view

    def __len__(self):
        return len(self.view) // 8

    def __getitem__(self, at):
        return int.from_bytes(self.view[8 * at : 8 * at + 8], "big")

    def __setitem__(self, at, value):
        for place, byte in enumerate(value.to_bytes(8, "big"), 8 * at):
            self.view[place] = byte

    def release(self):
        pass


'''


@dataclass(frozen=True, slots=True)
class Plant:
    """`replacements`: (old, new) in `file`; `part`: module and arguments that must then fail."""

    file: str
    replacements: tuple[tuple[str, str], ...]
    part: tuple[str, ...]


PLANTS: Final[dict[str, Plant]] = {
    "reader bounded by the seqno word": Plant(
        "replicate/pool/journal_pool.py",
        (
            ("if record_first != expected or kind != _FRAMES:", "if kind != _FRAMES:"),
            ('self._put(words[WRITTEN], _IN_FILES, published + 1, first_seqno - 1, 0, b"")', "pass"),
        ),
        ("tests.faults.pool_storm", "--seed", "3"),
    ),
    "control words in another byte order": Plant(
        "replicate/pool/shared_memory.py",
        (
            ('self.words = self.view[:CONTROL_BYTES].cast("Q")', "self.words = _Words(self.view[:CONTROL_BYTES])"),
            (
                'memoryview(os.pread(fd, CONTROL_BYTES, 0)).cast("Q")',
                "_Words(memoryview(os.pread(fd, CONTROL_BYTES, 0)))",
            ),
            ("class SharedMemory:", _WORDS + "class SharedMemory:"),
        ),
        ("tests.faults.torn_words",),
    ),
    "no directory fsync": Plant(
        "replicate/system/files.py",
        (("            os.fsync(self._fd)\n", "            pass\n"),),
        ("tests.faults.crash_states", "--runs", "switch", "--stride", "10", "--samples", "1"),
    ),
    "acknowledge before fsync": Plant(
        "replicate/door/durability.py",
        (("            self.wait(seqno)\n        elif", "            pass\n        elif"),),
        ("tests.faults.crash_states", "--runs", "durable", "--stride", "3", "--samples", "2"),
    ),
    "SCR outside of the transaction": Plant(
        "replicate/door/secondary.py",
        (
            (
                "            self._write_scr(position, csn, defines)\n            try:  # as",
                "            try:  # as",
            ),
            (
                '                    hit("apply.after_commit")\n                    self._note_schema(defines)\n'
                "                    door.finish_batch",
                '                    hit("apply.after_commit")\n'
                "                    self._write_scr(position, csn, defines)\n"
                "                    self._note_schema(defines)\n                    door.finish_batch",
            ),
        ),
        ("tests.faults.campaign", "--classes", "update", "--rounds", "25", "--seed", "3", "--converged-s", "20"),
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
    "a lost value is not kept": Plant(
        "replicate/region/sqlite/apply/merge.py",
        (("            note_losses(self._connection, one.seqno, [pack_merged(one)])\n", "            pass\n"),),
        ("tests.faults.suppliers", "--rounds", "2", "--seed", "3"),
    ),
    "stamps forgotten by one's own vector": Plant(
        "replicate/model/seen.py",
        (("{origin: min([last, *(row.get(origin, 0) for row in rows)])", "{origin: last"),),
        ("tests.faults.supplier_worlds", "--worlds", "50"),
    ),
    "pool not repaired after a killed writer": Plant(
        "replicate/door/door.py",
        (("            if words[INTENT_SEQNO]:\n                self._mend()\n", ""),),
        ("tests.faults.campaign", "--classes", "writer", "--rounds", "14", "--seed", "3", "--converged-s", "12"),
    ),
}  # fmt: skip


def harmed(name: str) -> str:
    """The text of that bug's file with the bug in it."""
    path = ROOT / PLANTS[name].file
    text = path.read_text(encoding="utf-8")
    for old, new in PLANTS[name].replacements:
        assert text.count(old) == 1, f"{name}: this stands {text.count(old)} times in {path.name}: {old!r}"
        text = text.replace(old, new)
    return text


def plant(name: str, directory: Path) -> None:
    """A copy of the packages and the tests below `directory`, with that bug."""
    for package in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    (directory / PLANTS[name].file).write_text(harmed(name), encoding="utf-8")


def find(name: str, timeout_s: float = 300) -> tuple[bool, str]:
    """Whether the campaign finds it, and what it says last."""
    with tempfile.TemporaryDirectory(prefix="replicate-plant-") as place:
        plant(name, Path(place))
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", *PLANTS[name].part],
            cwd=place, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        text = done.stdout + done.stderr
        lines = [line for line in text.splitlines() if _tells(line)]
        is_ours = any(word in text for word in ("SyntaxError", "NameError", "ImportError", "AttributeError"))
        return done.returncode == 1 and bool(lines) and not is_ours, lines[-1][:160] if lines else ""


def _tells(line: str) -> bool:
    if line.startswith(tuple(f"must be 0: {name}" for name in OF_US)):
        return False
    return line.startswith(("must be 0", "replicate.errors.", "AssertionError")) and not line.endswith(" 0")


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    for name in options.names.split(",") if options.names else PLANTS:
        began_s = time.monotonic()
        found, said = find(name)
        figures["planted bugs found" if found else "planted bugs missed"] += 1
        figures[f"planted bug {'found' if found else 'missed'}: {name}"] += 1
        print(f"{name:<42} {'found' if found else 'MISSED':<7} {time.monotonic() - began_s:4.0f} s  {said}", flush=True)


def main() -> int:
    made = parser("tests.faults.plants")
    made.add_argument("--names", default="")
    return run_part(made.parse_args(), work, ("planted bugs missed", "parts that failed"), least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
