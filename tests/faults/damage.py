"""Damage to an instance: the mutations of damage_places.py, each on its own, then recovery and a whole read.

    python -m tests.faults.damage [--stride N | --seconds S] [--seed N]

The instance is a primary under `durable` with several segments, one of them adopted, and a NULL record, all
acknowledged. A mutation is right when a named error says what is damaged, or when everything is there as it was (a ring
has completed it).
Guarantees: counted are mutations tried, detected, mended, accepted wrongly, and silently shortened; what raises any
other error than a ReplicateError is a violation too.
Leaves to others: what recovery does.
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
from pathlib import Path
from typing import Final

from replicate.audit.verify import verify_journal
from replicate.door.primary import RegionSession
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.model.transaction import Kind
from tests.faults.damage_places import Foreign, Mutation, mutations
from tests.faults.part import parser, run_part
from tests.faults.town import fork
from tests.harness import instances

DAMAGE_ZERO: Final = ("accepted wrongly", "silently shortened", "unnamed errors")
IN_CHILD: Final = 50
LEAST: Final = ("mutations", "detected")


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
        _fail_commit(session)
        instances.insert(session, 1010, "z")
    found = instances.check(instance)
    assert {Kind.HISTORY, Kind.TRANSACTION, Kind.NULL, Kind.LARGE} == {*found.kinds()}
    assert len(list(instance.journal_directory.glob("*.journal"))) >= 4
    other = instances.make_primary(root / "gamma", segment_bytes=1 << 20)
    with instances.session_of(other) as session:
        for row_id in range(1, 5):
            instances.insert(session, row_id)
    shutil.copy(instances.newest_segment(other), root / "foreign")
    shutil.copy(other.path / "instance.json", root / "foreign.json")
    (root / "content").write_text(json.dumps(content_of(found)))


def _fail_commit(session: RegionSession) -> None:
    """A transaction whose COMMIT the region refuses after its append: it is voided."""
    session.connection.set_commit_hook(lambda: True)
    try:
        instances.insert(session, 1009)
    except ReplicateError:
        return
    finally:
        session.connection.set_commit_hook(None)
    raise AssertionError("the region has not refused its COMMIT")


def content_of(found: instances.Found) -> dict[str, object]:
    """What must be there afterwards, by seqno."""
    told = {str(seqno): [int(one.kind), one.origin_seqno, one.chain] for seqno, one in found.transactions.items()}
    return {"transactions": told, "rows": sorted(found.rows["main"])}


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
            assert mutation.offset < size, mutation
            file.truncate(mutation.offset)
            return
        file.seek(mutation.offset)
        data = mutation.data
        if mutation.kind == "flip":
            data = bytes([file.read(1)[0] ^ mutation.data[0]])
        elif mutation.kind == "cut":
            data = bytes(size - mutation.offset)
        file.seek(mutation.offset)
        assert file.read(len(data)) != data, f"nothing would be changed by {mutation}"
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
            foreign = Foreign((root / "foreign").read_bytes(), (root / "foreign.json").read_bytes())
            todo = list(mutations(kept / "alpha", foreign, random.Random(seed), stride))
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
                    figures[f"mutations: {mutation.kind} {mutation.where}"] += 1
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
