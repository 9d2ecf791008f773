"""Random programs on replicate.dbapi and on the standard library's sqlite3, step by step, and on the secondary.

    python -m tests.fuzz.as_sqlite3 [--seconds S | --programs N] [--seed SEED]
    python -m tests.fuzz.as_sqlite3 --program SEED        one program again; it is shrunk if it fails

Guarantees: after each step result, error and state of both sides are the same, but for the rules of
as_sqlite3_rules.py; in the end the databases are, and the secondary is equal to the primary row by row. Where the
standard library's module dies (in a process of its own: as_sqlite3_reference.py), the comparison ends, says so, and is
no failure of ours.
Leaves to others: what programs are made of.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from replicate import connect
from tests.fuzz.as_sqlite3_programs import Program, Step, draw
from tests.fuzz.as_sqlite3_reference import Died, Reference
from tests.fuzz.as_sqlite3_rules import Doubts, Parted, excuse, left_out
from tests.fuzz.as_sqlite3_side import Seen, Side, registered
from tests.fuzz.own_directory import OwnDirectory, base
from tests.harness.differential import read, same
from tests.harness.pair import Pair, assert_equal

_SETTINGS = '[journal]\ndurability = "off"\npool_bytes = 1048576\n'
_PARTS = ("script", "with_block", "many")
"""Steps of which a part may have been done when another part was refused by name."""


class Difference(AssertionError):
    """The sides are not the same. `kind`: what tells one bug from another, while a program is shrunk."""

    kind = ""


class Run:
    """One program. `log`: what was done; `excused`: how often by which rule; `compared`: steps before they parted;
    `died`: where the reference did, if it did."""

    def __init__(self, program: Program, directory: Path, reference: Reference) -> None:
        self.program = program
        self.reference = reference
        self.log: list[str] = []
        self.excused: Counter[str] = Counter()
        self.compared = 0
        self.died = ""
        self.doubts = Doubts(reference.release.python)
        self.pair = Pair.create(directory, program.script, settings=_SETTINGS)
        self.pair.seed()

    def go(self) -> None:
        """Run it. Difference if the sides differ."""
        options = self.program.options
        self.reference.open(self.pair.directory / "plain.db", self.program)
        with contextlib.closing(connect(self.pair.primary.path, **options)) as connection:
            ours = Side(connection)
            try:
                for step in self.program.steps:
                    self._step(step, ours)
                self._end(ours)
            except Parted as why:
                self.excused[str(why)] += 1
            except Died as why:
                self.died = str(why)
        self.pair.catch_up()
        primary = read(self.pair.primary.region("main").path)
        same(primary, read(self.pair.secondary.region("main").path), "primary", "secondary")
        assert_equal(self.pair)

    def _step(self, step: Step, ours: Side) -> None:
        rule = left_out(step, self.doubts.python)
        if rule is not None:
            self.excused[rule] += 1
            return
        one = ours.perform(step)
        self.log.append(f"{step}\n    {one}")
        if one[0] == "refused":
            self.excused["refused by name"] += 1
            if step.kind in _PARTS:
                raise Parted("refused by name, in a part of a step")
            ours.connection.rollback()
            self.reference.rollback()
            return
        other = self.reference.perform(step)
        self.compared += 1
        if one != other:
            rule = excuse(step, one, other, self.doubts)
            if rule is None:
                found = Difference(
                    f"{step}\n replicate: {_differing(one, other)}\n sqlite3:   {_differing(other, one)}"
                )
                found.kind = repr((step.kind, [a[0] if isinstance(a, tuple) else a for a in _differing(one, other)]))
                raise found
            self.excused[rule] += 1
        self.doubts.note(step, one, other)

    def _end(self, ours: Side) -> None:
        for kind in ("authorizer", "trace", "text_factory"):
            self._step(Step("setting", (kind, "str" if kind == "text_factory" else None, 0)), ours)
        for kind in ("look", "commit", "rollback", "look", "dump"):
            self._step(Step(kind), ours)


def _differing(one: Seen, other: Seen) -> Seen:
    if one.index("|") != other.index("|"):
        return one
    return tuple(a for a, b in zip(one, other, strict=True) if a != b)


@dataclass(frozen=True, slots=True)
class Home:
    """Where programs have their directories, in memory, and who the other side is."""

    path: Path
    reference: Reference


@contextlib.contextmanager
def homes() -> Iterator[Home]:
    """One, as long as the block; the environment is put back."""
    before = os.environ.get("REPLICATE_SHM_DIR")
    try:
        with OwnDirectory(base("REPLICATE_SHM_DIR")) as own, registered(), contextlib.closing(Reference()) as reference:
            yield Home(own.path, reference)
    finally:
        if before is None:
            os.environ.pop("REPLICATE_SHM_DIR", None)
        else:
            os.environ["REPLICATE_SHM_DIR"] = before


def run(program: Program, home: Home) -> Run:
    """Run a program. Difference, with the log of it, if anything differs."""
    directory = home.path / str(time.monotonic_ns())
    directory.mkdir()
    try:
        made = Run(program, directory, home.reference)
        try:
            made.go()
        except Exception as error:
            log = "\n".join([f"{type(error).__name__}: {error}", str(program.options), program.script, *made.log])
            found = Difference(f"program {program.seed}: {log}")
            found.kind = getattr(error, "kind", type(error).__name__)
            raise found from error
        return made
    finally:
        shutil.rmtree(directory)  # with the pools of both instances, or programs would fill the memory


def shrink(program: Program, home: Home, kind: str) -> Program:
    """The shortest program that still fails, as far as leaving steps out makes it."""
    size = len(program.steps) // 2
    while size:
        at = 0
        while at < len(program.steps):
            less = replace(program, steps=program.steps[:at] + program.steps[at + size :])
            try:
                run(less, home)
                at += size
            except Difference as error:
                if error.kind == kind:
                    program = less
                else:
                    at += size
        size //= 2
    return program


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--programs", type=int, default=1 << 60)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--program", default="")
    given = parser.parse_args()
    failures, excused, ends, number = 0, Counter[str](), time.monotonic() + given.seconds, 0
    with homes() as home:
        print(f"beside {home.reference.release}")
        while number < given.programs and time.monotonic() < ends:
            program = draw(given.program or f"{given.seed}-{number}")
            number += 1
            try:
                made = run(program, home)
                excused += made.excused
                if made.died:
                    print(f"program {program.seed}: {made.died}")
            except Difference as error:
                failures += 1
                lines = str(error).splitlines()
                print("\n".join(lines if given.program else lines[:3]))
                if given.program:
                    run(shrink(program, home, error.kind), home)
            if given.program:
                break
    print(f"{number} programs, {failures} differ; by rule: {dict(excused)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
