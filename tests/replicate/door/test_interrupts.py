"""Ctrl-C, or no memory left, at every line that a transaction passes: what state is the connection in then?

An interrupt arises at the end of a call, and here, by a trace function, in front of every line of ours but a bare
`try:`, where none can. Whatever line it is: the connection holds no lock but in an open transaction, `last_seqno` tells
whether the transaction is committed, the connection goes on, and in the end journal and region agree, so that nothing
is lost and nothing is there twice.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

import replicate
from replicate.door import primary
from replicate.door.door import Door
from replicate.pool import control as word
from tests.harness.instances import Writer, check, lose_pool, make_primary

pytestmark = pytest.mark.usefixtures("shared_memory")

OURS = str(Path(replicate.__file__).parent)


class Interrupt:
    """Raises `kind` in front of the `number`-th line of ours that is passed in a call. `at`: that line, once it has."""

    def __init__(self, number: int, kind: type[BaseException]) -> None:
        self.left, self.kind, self.at = number, kind, ""

    def during(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(OURS) else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                raise self.kind
        return self._line


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what was captured is no part of a commit, and has lines of its own to be interrupted at."""
    monkeypatch.setattr(primary, "CHECK_CAPTURE", False)


def insert(connection: replicate.Connection, row: int) -> None:
    connection.execute("INSERT INTO t VALUES (?, 'x')", (row,))


def prepare_switch(connection: replicate.Connection, row: int) -> None:
    insert(connection, row)
    words(connection)[word.SEGMENT_SEALED] = 1


def words(connection: Any) -> Any:
    return connection._state.opened.session.door.words


def in_region(connection: Any, row: int) -> bool:
    return bool(connection._state.apsw.execute("SELECT 1 FROM t WHERE id = ?", (row,)).get)


def nothing(_connection: replicate.Connection, _row: int) -> None:
    pass


CASES: dict[str, tuple[Callable[..., None], Callable[..., None], int, type[BaseException]]] = {
    "commit": (insert, lambda connection, _row: connection.commit(), 1, KeyboardInterrupt),
    "commit without memory": (insert, lambda connection, _row: connection.commit(), 3, MemoryError),
    "commit at a segment switch": (prepare_switch, lambda connection, _row: connection.commit(), 83, KeyboardInterrupt),
    "rollback": (insert, lambda connection, _row: connection.rollback(), 1, KeyboardInterrupt),
    "first statement": (nothing, insert, 1, KeyboardInterrupt),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_interrupt_at_any_line(tmp_path: Path, case: str) -> None:
    prepare, interrupted, step, kind = CASES[case]
    instance = make_primary(tmp_path / "p")
    wanted: set[int] = set()
    rows = iter(range(10**6))
    with closing(replicate.connect(instance.path)) as connection:
        insert(connection, row := next(rows))
        connection.commit()
        wanted.add(row)
        for number in _numbers(step):
            interrupt, row = Interrupt(number, kind), next(rows)
            prepare(connection, row)
            before = connection.last_seqno
            try:
                interrupt.during(lambda row=row: interrupted(connection, row))  # type: ignore[misc]
            except kind:
                pass
            judge(connection, row, before, interrupt.at)
            if connection.in_transaction and number % 2 and case.startswith("commit"):
                connection.commit()  # again
            connection.rollback()
            if in_region(connection, row):
                wanted.add(row)
            insert(connection, row := next(rows))
            connection.commit()
            wanted.add(row)
            if not interrupt.at:
                break  # it has passed fewer lines
    assert check(instance).rows["main"].keys() == wanted


def _numbers(step: int) -> Iterator[int]:
    yield from range(1, 10_000, step)


def judge(connection: Any, row: int, before: int, at: str) -> None:
    primary = connection._state.opened.session
    door = primary.door
    assert not door._lock._file.held, f"the commit lock is held: {at}"
    assert not door._lock._thread._is_owned(), f"the commit lock's thread lock is held: {at}"
    assert not door.durability._lock.held, f"the sync lock is held: {at}"
    assert not door.durability._thread_lock._is_owned(), f"the sync lock's thread lock is held: {at}"
    assert not door.words[word.FATAL], at
    assert connection.in_transaction == connection._state.apsw.in_transaction, at
    assert connection.in_transaction or not primary.holds_region, f"the region is held: {at}"
    if not connection.in_transaction:
        assert in_region(connection, row) == (connection.last_seqno > before), f"last_seqno does not tell: {at}"


# In the midst of a switch of segments: what the next one finds, no matter who that is.


class InSwitch:
    """Raises KeyboardInterrupt in a switch of segments, after the `number`-th instruction of it where one can arise: a
    call that has returned or begun, a jump back. `at`: where, once it has."""

    def __init__(self, number: int) -> None:
        self.left, self.at = number, ""
        self._depth = 0

    def during(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        gc.disable()  # an interrupt in a `__del__` is told on standard error, and goes no further
        sys.settrace(self._enter)
        try:
            call()
        finally:
            sys.settrace(before)
            gc.enable()

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if not self._depth and frame.f_code is not Door._switch.__code__:
            return None
        self._depth += 1
        frame.f_trace_opcodes = True
        asked = _asked(frame.f_code)

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "return":
                self._depth -= 1
            elif event == "opcode" and frame.f_lasti in asked:
                self.left -= 1
                if not self.left:
                    sys.settrace(None)
                    self.at = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
                    raise KeyboardInterrupt
            return trace

        return trace


STRIDES: Final = {"we": 13, "another": 11, "recovery": 31}
"""Every one of the thousand places has been tried; it takes minutes."""


@functools.cache
def _asked(code: CodeType) -> frozenset[int]:
    """The instructions in front of which the interpreter asks whether there is an interrupt."""
    asks = ("CALL", "RESUME", "JUMP_BACKWARD")
    found = list(dis.get_instructions(code))
    return frozenset(after.offset for one, after in itertools.pairwise(found) if one.opname.startswith(asks))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["we", "another", "recovery"])
def test_an_interrupt_in_the_midst_of_a_switch(tmp_path: Path, who: str) -> None:
    """Then we commit, or another process does, or the machine loses its memory: nothing is lost, nothing doubled."""
    instance = make_primary(tmp_path / "p")
    wanted: set[int] = set()
    rows = iter(range(10**6))
    number, at = 1 - STRIDES[who], "none yet"
    connection = replicate.connect(instance.path)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: connection.close())
        other = stack.enter_context(Writer(instance))
        while at:
            number += STRIDES[who]
            prepare_switch(connection, row := next(rows))
            interrupt, before = InSwitch(number), connection.last_seqno
            try:
                interrupt.during(connection.commit)
            except KeyboardInterrupt:
                pass
            at = interrupt.at
            judge(connection, row, before, at)
            if connection.in_transaction and number % 2:
                connection.commit()  # again
            connection.rollback()
            if in_region(connection, row):
                wanted.add(row)
            if who == "recovery":
                connection.close()
                lose_pool(instance)
                connection = replicate.connect(instance.path)
            elif who == "another":
                row = next(rows)
                assert isinstance(other.ask("insert", "main", row), int), at
                wanted.add(row)
            insert(connection, row := next(rows))
            connection.commit()
            wanted.add(row)
    assert check(instance).rows["main"].keys() == wanted
    assert number > 500


class Interrupted(bytearray):
    """Captured bytes; an interrupt arises when they are to be thrown away."""

    def clear(self) -> None:
        raise KeyboardInterrupt


def test_a_rollback_that_was_interrupted_leaves_nothing_to_the_next_transaction(tmp_path: Path) -> None:
    """What was left in the capture's buffer became a frame that nobody could decode."""
    instance = make_primary(tmp_path / "p")
    with closing(replicate.connect(instance.path)) as connection:
        regions: Any = connection._state.transaction.regions
        capture = regions.capture
        insert(connection, 1)
        capture._buffer = Interrupted(capture._buffer)
        with pytest.raises(KeyboardInterrupt):
            connection.rollback()
        assert capture._buffer
        capture._buffer = bytearray(capture._buffer)
        insert(connection, 2)
        connection.commit()
    assert check(instance).rows["main"].keys() == {2}
