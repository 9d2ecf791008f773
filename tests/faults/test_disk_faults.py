"""Crash states, journal damage and I/O errors in their short forms; the long ones are `deploy/test --faults`.

Faults 6, 26 to 30, 33 to 41, 45 and 49.
"""

from __future__ import annotations

import math
import os
import random
import socket
import struct
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from replicate.limits import SEGMENT_HEADER_BYTES
from tests.faults import crash_states, damage, damage_places, io_errors
from tests.faults.disk import Op, TracedDisk, read_trace
from tests.harness.checkout import ROOT
from tests.harness.machine_tools import can_trace

STRIDE = {
    "durable": 9,
    "off": 9,
    "switch": 40,
    "torn": 16,
    "instance": 1,
    "create": 90,
    "apply": 180,
    "redo": 110,
    "redo apply": 140,
    "several": 70,
    "several off": 50,
    "hole": 60,
    "seed": 80,
    "seed again": 90,
    "demote": 60,
    "promote": 90,
    "rollback": 60,
    "lost apply": 90,
}


@pytest.mark.slow
@pytest.mark.turns(3)
@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace here")
@pytest.mark.parametrize("name", STRIDE)
def test_every_crash_state_is_recovered_from(name: str) -> None:
    figures: Counter[str] = Counter()
    violations = crash_states.explore(name, samples=1, stride=STRIDE[name], seed=3, figures=figures)
    assert violations == []
    assert figures["crash states"] > 5


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace here")
def test_a_cut_that_is_not_synced_loses_nothing() -> None:
    """Why it stands on no list of bugs: see plants.py."""
    figures: Counter[str] = Counter()
    violations = crash_states.explore("cut not synced", samples=1, stride=8, seed=5, figures=figures)
    assert violations == []
    assert figures["crash states"] > 5


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace here")
def test_fault_31_a_journal_whose_syncs_lie_is_named_or_completed() -> None:
    """What the mark beside the journal calls durable, which was really synced, is there (a region's ring has completed
    it), or recovery names it. What was acknowledged since the mark was written has no other witness: the limit that
    the chapter on faults states."""
    figures: Counter[str] = Counter()
    violations = crash_states.explore("lying syncs", samples=1, stride=16, seed=6, figures=figures)
    assert violations == []
    assert figures["crash states"] > 5


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace here")
def test_a_peer_that_was_told_and_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the judge: without the sync of its directory the instance file that was renamed may be the one before."""

    def without_sync_of_directories(ops: list[Op]) -> list[Op]:
        return [op for op in ops if not (op.kind == "sync" and Path(op.path).is_dir())]

    planted = crash_states.Faulty("instance", without_sync_of_directories)
    monkeypatch.setitem(crash_states.FAULTY, "directory not synced", planted)
    figures: Counter[str] = Counter()
    violations = crash_states.explore("directory not synced", samples=1, stride=1000, seed=3, figures=figures)
    assert violations
    assert all(" told, " in violation for violation in violations), violations


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="strace is not installed, or may not trace here")
def test_the_states_are_the_same_however_python_buffers_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONUNBUFFERED made two operations of each line that was told, and so moved all looks after it."""
    found = []
    for setting in ("", "1"):
        monkeypatch.setenv("PYTHONUNBUFFERED", setting)
        figures: Counter[str] = Counter()
        assert crash_states.explore("instance", samples=1, stride=5, seed=3, figures=figures) == []
        found.append(figures)
    assert found[0] == found[1]
    assert (found[0]["operations"], found[0]["operations looked at"]) == (18, 4)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_that_is_told_is_one_write_and_has_left_the_process(unbuffered: str) -> None:
    program = "import os; from tests.harness.telling import tell; tell([1, 2]); tell('x'); os._exit(0)"
    reading, writing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # what is written apart is read apart
    with reading, writing:
        settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", program], stdout=writing, env=settings, check=True)
        writing.close()
        assert [reading.recv(100) for _ in range(3)] == [b"[1, 2]\n", b'"x"\n', b""]


@pytest.mark.parametrize("stride", [1, 7, 110])
def test_one_of_each_stride_of_operations_is_looked_at(stride: int) -> None:
    pace = crash_states.Pace(352, crash_states.Looks(3, 1, stride, math.inf), random.Random(3))
    taken = [number for number in range(352) if pace.takes(number)]
    whole = 352 // stride
    assert [number // stride for number in taken][:whole] == [*range(whole)]
    assert len(taken) <= whole + 1


@pytest.mark.slow
def test_damage_is_detected_or_mended_and_nothing_is_silently_shortened() -> None:
    figures: Counter[str] = Counter()
    assert damage.sweep(stride=29, seed=4, figures=figures) == []
    assert figures["detected"] > 50
    tried = {name.removeprefix("mutations: ") for name in figures if name.startswith("mutations: ")}
    assert {one.split()[1] for one in tried} == {"frame", "header", "mark", "identity", "file"}
    assert {one.split()[0] for one in tried} == {"flip", "cut", "shorten", "swap", "remove", "exchange", "foreign"}


def test_fields_are_those_of_the_layout() -> None:
    assert damage_places.fields(struct.Struct(">8sIB")) == [(0, 8), (8, 4), (12, 1)]
    for layout in (damage_places.FRAME_FIELDS, damage_places.SLOT_FIELDS, damage_places.HEADER_FIELDS[:-1]):
        assert all(one + size == other for (one, size), (other, _) in pairwise(layout))
    assert sum(damage_places.HEADER_FIELDS[-1]) == SEGMENT_HEADER_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("error", io_errors.ERRORS)
@pytest.mark.parametrize("call", ["fdatasync", "fsync", "rename"])
def test_the_nth_call_fails(call: str, error: str) -> None:
    figures: Counter[str] = Counter()
    assert io_errors.sweep(call, error, figures) == []
    assert figures[f"I/O errors: {call} {error}"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("error", io_errors.ERRORS)
def test_the_nth_write_fails(error: str) -> None:
    figures: Counter[str] = Counter()
    assert io_errors.sweep("pwrite", error, figures, stride=4) == []
    assert figures[f"I/O errors: pwrite {error}"] >= 3


def test_a_trace_is_read(tmp_path: Path) -> None:
    lines = [
        'openat(AT_FDCWD<\\x2f>, "\\x2f\\x61\\x2f\\x62", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 5<\\x2f\\x61\\x2f\\x62>',
        'pwrite64(5<\\x2f\\x61\\x2f\\x62>, "\\x41\\x42\\x43", 3, 4096) = 3',
        'write(5<\\x2f\\x61\\x2f\\x62>, "\\x44", 1) = 1',
        "fdatasync(5<\\x2f\\x61\\x2f\\x62>) = 0",
        "fdatasync(5<\\x2f\\x61\\x2f\\x62>) = -1 EIO (Input/output error)",
        'rename("\\x2f\\x61\\x2f\\x62", "\\x2f\\x61\\x2f\\x63") = 0',
        'link("\\x2f\\x61\\x2f\\x63", "\\x2f\\x61\\x2f\\x64") = 0',
        'write(1<\\x70>, "\\x35\\x0a", 2) = 2',
    ]
    assert list(read_trace(lines, "/a")) == [
        Op("create", "/a/b"),
        Op("write", "/a/b", 4096, b"ABC"),
        Op("write", "/a/b", 0, b"D"),
        Op("sync", "/a/b"),
        Op("rename", "/a/b", target="/a/c"),
        Op("link", "/a/c", target="/a/d"),
        Op("told", "", 0, b"5\n"),
    ]


def test_what_is_synced_is_in_every_state_and_what_is_not_may_be_missing(tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_bytes(b"a" * 1024)
    disk = TracedDisk(tmp_path)
    new = str(tmp_path / "new")
    for op in (
        Op("write", str(known), 0, b"b" * 1024),
        Op("create", new),
        Op("write", new, 0, b"n"),
        Op("sync", new),
    ):
        disk.take(op)
    states = [state for _, state in disk.states(random.Random(1), 40)]
    assert {state[str(known)] for state in states} == {
        one * 512 + other * 512 for one in (b"a", b"b") for other in (b"a", b"b")
    }
    assert {state.get(new) for state in states} == {None, b"n"}  # its name is not certain, its content is
    disk.take(Op("sync", str(tmp_path)))
    disk.take(Op("sync", str(known)))
    assert {(state[new], state[str(known)]) for _, state in disk.states(random.Random(1), 9)} == {(b"n", b"b" * 1024)}


def test_a_second_name_is_of_the_same_file_and_may_be_missing_by_itself(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a")
    disk = TracedDisk(tmp_path)
    for op in (Op("link", str(one), target=str(other)), Op("write", str(other), 0, b"b"), Op("sync", str(one))):
        disk.take(op)
    states = [state for _, state in disk.states(random.Random(1), 9)]
    assert {(state[str(one)], state.get(str(other))) for state in states} == {(b"b", None), (b"b", b"b")}
    disk.take(Op("unlink", str(one)))
    disk.take(Op("sync", str(tmp_path)))
    assert next(state for _, state in disk.states(random.Random(1), 1)) == {str(other): b"b"}


def test_names_of_different_directories_are_lost_for_themselves(tmp_path: Path) -> None:
    """A later one may be there without an earlier one, also of the same directory; what is renamed is never nowhere."""
    here, there = tmp_path / "here", tmp_path / "there"
    for directory in (here, there):
        directory.mkdir()
    (here / "old").write_bytes(b"o")
    disk = TracedDisk(tmp_path)
    disk.take(Op("create", str(here / "one")))
    disk.take(Op("rename", str(here / "old"), target=str(there / "new")))
    disk.take(Op("create", str(here / "two")))

    def found() -> set[tuple[str, ...]]:
        states = [state for _, state in disk.states(random.Random(1), 60)]
        return {tuple(sorted(name for name in ("one", "two", "old", "new") if f"/{name}" in "".join(state)))
                for state in states}  # fmt: skip

    assert ("new", "one", "two") in found()
    assert {("old", "two"), ("new", "old"), ("new", "two"), ("new", "old", "one")} <= found()
    assert all("old" in names or "new" in names for names in found())
    disk.take(Op("sync", str(here)))  # what has left is certain to have come where it went
    assert found() == {("new", "one", "two")}


def test_a_directory_that_is_lost_takes_with_it_what_was_synced_in_it(tmp_path: Path) -> None:
    made, file = tmp_path / "made", tmp_path / "made" / "file"
    disk = TracedDisk(tmp_path)
    for op in (Op("mkdir", str(made)), Op("create", str(file)), Op("write", str(file), 0, b"x"), Op("sync", str(file))):
        disk.take(op)
    disk.take(Op("sync", str(made)))
    states = [state for _, state in disk.states(random.Random(1), 9)]
    whole = {str(made): None, str(file): b"x"}
    assert all(state in ({}, whole) for state in states)
    assert {} in states
    assert whole in states
    disk.put(whole)
    assert file.read_bytes() == b"x"
    disk.put({})
    assert not made.exists()
    disk.take(Op("sync", str(tmp_path)))
    assert all(state == whole for _, state in disk.states(random.Random(1), 9))
