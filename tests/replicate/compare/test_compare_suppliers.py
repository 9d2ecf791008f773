"""Two suppliers compared while both write without a pause: no difference that is none, and none that is overlooked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.compare import compare as module
from replicate.compare.compare import compare
from replicate.door.snapshot import door_of
from replicate.errors import BusyError, TryAgainError
from replicate.pool import control as word
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setattr(module, "STRETCH_S", 0.3)
    return Suppliers.create(tmp_path)


@pytest.fixture
def load(two: Suppliers) -> Iterator[list[BaseException]]:
    """Each writes, and what it has written is brought to the other, until the test ends."""
    is_over = threading.Event()
    failed: list[BaseException] = []

    def repeat(act: object, *words: str) -> None:
        try:
            while not is_over.is_set():
                act(*words)  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(two.write, name)) for name in ("a", "b")]
    threads += [threading.Thread(target=repeat, args=(two.carry, *ways)) for ways in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    yield failed
    is_over.set()
    for thread in threads:
        thread.join()


def test_they_are_equal_under_load(two: Suppliers, load: list[BaseException]) -> None:
    found = compare(two.by["a"], two.by["b"], timeout_s=60)
    assert found.equal
    assert not load


def test_a_row_that_was_changed_by_hand_is_found_under_load(two: Suppliers, load: list[BaseException]) -> None:
    two.write("a")
    compare(two.by["a"], two.by["b"], timeout_s=60)
    connection = apsw.Connection(str(two.by["b"].regions[0].path))
    connection.setbusytimeout(60_000)
    connection.create_scalar_function("replicate_connect_is_required", lambda *_: 0)
    connection.execute("DELETE FROM ta WHERE id = (SELECT min(id) FROM ta)")
    connection.close()
    assert not compare(two.by["a"], two.by["b"], timeout_s=60).equal
    assert not load


def test_where_something_is_always_on_its_way_beginnings_are_held(two: Suppliers) -> None:
    """All that was written arrives while they are, and never before."""
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            two.write("a")

    def carry() -> None:
        with door_of(two.by["a"]) as door:
            while not is_over.is_set():
                wait_until(lambda: is_over.is_set() or door.words[word.CLOSING])
                two.carry("a", "b")

    two.write("a")
    threads = [threading.Thread(target=act) for act in (write, carry)]
    for thread in threads:
        thread.start()
    try:
        assert compare(two.by["a"], two.by["b"], timeout_s=60).equal
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_without_a_line_there_is_no_such_moment(two: Suppliers) -> None:
    two.write("a")
    with pytest.raises(TryAgainError, match=r"did not have the same transactions .* within 1 s"):
        compare(two.by["a"], two.by["b"], timeout_s=1)
    two.level()
    assert compare(two.by["a"], two.by["b"], timeout_s=1).equal


def test_a_lock_that_is_not_free_for_a_while_is_waited_for(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk may hold a commit for longer than a stretch is."""
    has_begun, has_it = threading.Event(), threading.Event()
    level_before = module._level_before

    def begin(*words: Any) -> Any:
        has_begun.set()
        assert has_it.wait(60)
        return level_before(*words)

    def hold() -> None:
        with door_of(two.by["b"]) as door:
            assert has_begun.wait(60)
            with door.locked():
                has_it.set()
                threading.Event().wait(0.5)

    monkeypatch.setattr(module, "STRETCH_S", 0.05)
    monkeypatch.setattr(module, "_level_before", begin)
    thread = threading.Thread(target=hold)
    thread.start()
    assert compare(two.by["a"], two.by["b"], timeout_s=60).equal
    thread.join()


def test_a_lock_that_is_never_free_is_what_it_ends_with(two: Suppliers, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_words: Any) -> Any:
        raise BusyError("the commit lock was held")

    monkeypatch.setattr(module, "_level_before", busy)
    with pytest.raises(BusyError, match="commit lock was held"):
        compare(two.by["a"], two.by["b"], timeout_s=0.1)
