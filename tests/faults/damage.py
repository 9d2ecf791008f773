"""Damage to a journal: flips, cuts and swaps at every field of every frame and header, then recovery and a whole read.

    python -m tests.faults.damage [--stride N | --seconds S] [--seed N]

The instance is a primary under `durable` with several segments, one of them adopted, all acknowledged. A mutation
is right when a named error says what is damaged, or when everything is there as it was (a ring has completed it).
Guarantees: counted are mutations tried, detected, mended, accepted wrongly, and silently shortened; what raises any
other error than a ReplicateError is a violation too.
Refuses to know: what recovery does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Final

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.header import _LAYOUT
from replicate.journal.record import FRAME_HEAD_BYTES, check_frame
from replicate.journal.segment import open_segment
from replicate.journal.verify import verify_journal
from replicate.limits import SEGMENT_HEADER_BYTES
from tests.faults.part import parser, run_part
from tests.faults.town import fork
from tests.harness import instances

DAMAGE_ZERO: Final = ("accepted wrongly", "silently shortened", "unnamed errors")
IN_CHILD: Final = 50
BODY_STEP: Final = 37
"""Behind a frame's head every so many bytes are flipped; its head at each byte."""
LEAST: Final = ("mutations", "detected")


@dataclass(frozen=True, slots=True)
class Mutation:
    """`kind`: flip (data is the mask), cut (zeros to the end), shorten (the file), swap (data stands there instead); of
    whole segments: remove, exchange (data is the other's name), foreign (data is one of another instance)."""

    kind: str
    name: str
    offset: int
    data: bytes = b""


def build(root: Path) -> None:
    """The instance, and what its journal holds."""
    instance = instances.make_primary(root / "alpha", segment_bytes=1 << 20)
    with instances.session_of(instance) as session:
        for row_id in range(1, 5):
            instances.insert(session, row_id)
        for row_id in range(10, 15):
            instances.insert(session, row_id, "x" * 230_000)
        session.commit(instances.begin_large(session, 100, 300))
        for row_id in range(1000, 1006):
            instances.insert(session, row_id, "y" * 50)
    found = instances.check(instance)
    assert len(list(instance.journal_directory.glob("*.journal"))) >= 4
    other = instances.make_primary(root / "gamma", segment_bytes=1 << 20)
    with instances.session_of(other) as session:
        for row_id in range(1, 5):
            instances.insert(session, row_id)
    shutil.copy(instances.newest_segment(other), root / "foreign")
    (root / "content").write_text(json.dumps(content_of(found)))


def content_of(found: instances.Found) -> dict[str, object]:
    """What must be there afterwards, by seqno."""
    told = {str(seqno): [int(one.kind), one.origin_seqno, one.chain] for seqno, one in found.transactions.items()}
    return {"transactions": told, "rows": sorted(found.rows["main"])}


def frames_of(path: Path) -> list[tuple[int, int]]:
    """(offset, length) of each frame of a segment, as they stand in the file."""
    with open_segment(path) as segment:
        offset = SEGMENT_HEADER_BYTES
        found = []
        try:
            while True:
                frame = segment.read_frame(offset)
                check_frame(frame)
                found.append((offset, len(frame)))
                offset += len(frame)
        except ReplicateError:
            return found


def mutations(journal: Path, dice: random.Random, stride: int, foreign: bytes) -> Iterator[Mutation]:
    """All of them, every `stride`-th; those of whole segments always."""
    names = sorted(path.name for path in journal.glob("*.journal"))
    yield from (Mutation("remove", name, 0) for name in names)
    yield from (Mutation("exchange", one, 0, other.encode()) for one, other in combinations(names, 2))
    yield from (Mutation("foreign", name, 0, foreign) for name in names)
    made: list[Mutation] = []
    for path in sorted(journal.glob("*.journal")):
        frames = frames_of(path)
        header = [*range(_LAYOUT.size), *range(SEGMENT_HEADER_BYTES - 4, SEGMENT_HEADER_BYTES), _LAYOUT.size + 100]
        made += [Mutation("flip", path.name, at, _mask(dice)) for at in header]
        for offset, length in frames:
            inside = [*range(min(FRAME_HEAD_BYTES, length)), *range(FRAME_HEAD_BYTES, min(length, 2000), BODY_STEP)]
            made += [Mutation("flip", path.name, offset + at, _mask(dice)) for at in [*inside, length - 1]]
            made += [Mutation("cut", path.name, offset + at) for at in (0, 1, 5, FRAME_HEAD_BYTES, length - 1)]
            made.append(Mutation("shorten", path.name, offset + length // 2))
        whole = path.read_bytes()
        for (one, length), (other, size) in pairwise(frames):
            swapped = whole[other : other + size] + whole[one : one + length]
            made.append(Mutation("swap", path.name, one, swapped))
            made.append(Mutation("swap", path.name, other, whole[one : one + length]))  # the one before, once more
        made.append(Mutation("shorten", path.name, 0))
    made += [Mutation("flip", "durable", at, _mask(dice)) for at in (*range(32), *range(512, 544))]
    yield from made[dice.randrange(stride) :: stride]


def _mask(dice: random.Random) -> bytes:
    return bytes([1 << dice.randrange(8)])


def apply(journal: Path, mutation: Mutation) -> None:
    """Change the file."""
    path = journal / mutation.name
    if mutation.kind == "remove":
        path.unlink()
    elif mutation.kind == "exchange":
        other = journal / mutation.data.decode()
        ours = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(ours)
    elif mutation.kind == "foreign":
        path.write_bytes(mutation.data)
    else:
        _change(path, mutation)


def _change(path: Path, mutation: Mutation) -> None:
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if mutation.kind == "shorten":
            file.truncate(mutation.offset)
            return
        file.seek(mutation.offset)
        data = mutation.data
        if mutation.kind == "flip":
            data = bytes([file.read(1)[0] ^ mutation.data[0]])
        elif mutation.kind == "cut":
            data = bytes(size - mutation.offset)
        file.seek(mutation.offset)
        file.write(data)


def attempt(path: Path, expected: dict[str, object]) -> str:
    """Recover and read everything; how it ended. What only `verify` names must be nothing that a reader hands on."""
    try:
        found = content_of(instances.read_journal(Instance.open(path)))
        if found == expected and verify_journal(Instance.open(path)).findings:
            return "detected"
        found = content_of(instances.check(Instance.open(path)))
    except ReplicateError as error:
        return "detected" if str(error) else "unnamed errors"
    except AssertionError:
        return "accepted wrongly"
    except Exception:
        return "unnamed errors"
    if found == expected:
        return "mended"
    before, after = expected["transactions"], found["transactions"]
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    shortened = all(before.get(seqno) == one for seqno, one in after.items() if seqno in before)
    return "silently shortened" if shortened else "accepted wrongly"


def sweep(stride: int, seed: int, figures: Counter[str], deadline_s: float = math.inf) -> list[str]:
    """All mutations, in an order of the seed where there is a deadline; those that ended wrongly."""
    wrong: list[str] = []
    before = os.environ.get("REPLICATE_SHM_DIR")
    with tempfile.TemporaryDirectory(prefix="replicate-damage-") as place:
        root = Path(place)
        (root / "shm").mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(root / "shm")
        try:
            _child("build", lambda: build(root), root)
            expected = json.loads((root / "content").read_text())
            journal = root / "alpha" / "journal"
            kept = root / "kept"
            shutil.copytree(root / "alpha", kept / "alpha")
            for file in root.glob("alpha-main.db*"):
                shutil.copy(file, kept)
            todo = list(
                mutations(kept / "alpha" / "journal", random.Random(seed), stride, (root / "foreign").read_bytes())
            )
            figures["mutations planned"] += len(todo)
            if math.isfinite(deadline_s):
                random.Random(seed).shuffle(todo)
            out = root / "out"

            def work(part: list[Mutation]) -> None:
                results = []
                for mutation in part:
                    put_back(root, kept)
                    apply(journal, mutation)
                    results.append(attempt(root / "alpha", expected))
                out.write_text(json.dumps(results))

            for start in range(0, len(todo), IN_CHILD):
                if time.monotonic() > deadline_s:
                    break
                part = todo[start : start + IN_CHILD]
                _child("work", lambda part=part: work(part), root)
                for mutation, result in zip(part, json.loads(out.read_text()), strict=True):
                    figures["mutations"] += 1
                    figures[f"mutations: {mutation.kind}"] += 1
                    figures[result] += 1
                    if result in DAMAGE_ZERO:
                        wrong.append(f"{result}: {mutation.kind} {mutation.name} at {mutation.offset}")
        finally:
            if before is None:
                os.environ.pop("REPLICATE_SHM_DIR", None)
            else:
                os.environ["REPLICATE_SHM_DIR"] = before
    return wrong


def put_back(root: Path, kept: Path) -> None:
    """Everything as it was, the journal directory the same one, and no pool."""
    for file in [*(root / "shm").iterdir(), *root.glob("alpha-main.db*")]:
        file.unlink()
    for file in kept.glob("alpha-main.db*"):
        shutil.copy(file, root)
    for place in ("journal", "conflict", ""):
        for file in (root / "alpha" / place).iterdir():
            if file.is_file():
                file.unlink()
        for file in (kept / "alpha" / place).iterdir():
            if file.is_file():
                shutil.copy(file, root / "alpha" / place)


def _child(what: str, call: object, outside: Path) -> None:
    errors = outside / "errors.txt"
    child = fork(what, call, errors)  # type: ignore[arg-type]
    assert child.wait(300), f"{what} does not end"
    assert child.status == 0, errors.read_text()


def work(options: argparse.Namespace, figures: Counter[str]) -> None:
    for line in sweep(options.stride, options.seed, figures, options.deadline_s):
        print(line, flush=True)


def main() -> int:
    made = parser("tests.faults.damage")
    made.add_argument("--stride", type=int, default=1)
    return run_part(made.parse_args(), work, (*DAMAGE_ZERO, "parts that failed"), least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
