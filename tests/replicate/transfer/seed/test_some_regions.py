"""Regions that are filled alone, while the others go on: whatever comes between, wherever it dies."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.daemon.files import DaemonFiles
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.errors import (
    AlreadyExistsError,
    AlreadyRunningError,
    ConflictError,
    DivergedError,
    JournalMissingError,
    NotFoundError,
    PermissionRefusedError,
    ReplicateError,
    TryAgainError,
    UsageError,
)
from replicate.filters.whose_words import Content, note_content
from replicate.system import failpoint
from replicate.transfer.seed import some_regions
from replicate.transfer.seed.file import SeedReader
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.some_regions import install_alone, seed_alone, update_aside
from tests.harness.pair import Pair, assert_equal
from tests.update_process.test_region_arrival import add_with_rows, assert_level_but_for, lose_power, write, write_both

STEPS = ("alone.left", "alone.retired", "alone.placed", "alone.registered")


@pytest.fixture
def waits(pair: Pair) -> Pair:
    """Region two was added with rows, and waits on the secondary, which has all else."""
    pair.write(1)
    add_with_rows(pair, "two")
    write_both(pair)
    pair.catch_up()
    assert_level_but_for(pair, "two")
    return pair


def more(pair: Pair) -> None:
    """Of both regions, with a new form of a table between; and the secondary takes it."""
    write(pair, "two", "INSERT INTO account (owner, balance) VALUES ('later', 1)", "ALTER TABLE account ADD COLUMN x")
    write(pair, "main", "UPDATE account SET balance = balance + 1")
    write(pair, "two", "UPDATE account SET x = 9", "DELETE FROM account WHERE id = 1")
    pair.catch_up()


def made(pair: Pair, *names: str) -> os.PathLike[str]:
    path = pair.directory / "some.seed"
    make_seed(pair.primary, "west", path, regions=names or ("two",), replace=True)
    return path


def install(pair: Pair, *, restart: bool = False, between: Callable[[Pair], None] | None = None) -> None:
    path = pair.directory / "some.seed"
    made(pair)
    if between is not None:
        between(pair)
    install_alone(pair.secondary, path, ["two"], restart=restart)
    pair.secondary.reload()


def test_from_an_instance_here(waits: Pair) -> None:
    told: list[tuple[str, int, int]] = []
    seeded = seed_alone(waits.primary, waits.secondary, ["two"], told=lambda *one: told.append(one))
    assert (seeded.seqno, seeded.regions) == (waits.last_seqno(), ("two",))
    assert told[-1] == ("two", seeded.pages, seeded.pages)
    assert_equal(waits)
    more(waits)
    assert_equal(waits)
    assert not (waits.secondary.path / "regions" / "seed").exists()


def test_what_comes_after_the_copy_is_in_the_own_journal(waits: Pair) -> None:
    def between(pair: Pair) -> None:
        more(pair)
        write_large(pair)

    install(waits, between=between)
    assert_equal(waits)
    more_again(waits)
    assert_equal(waits)


def write_large(pair: Pair) -> None:
    numbers = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 9)"
    write(pair, "two", f"{numbers} INSERT INTO entry (data) SELECT zeroblob(1 << 18) FROM n")
    pair.catch_up()


def more_again(pair: Pair) -> None:
    write(pair, "two", "UPDATE account SET x = 10", "UPDATE account SET balance = 3")
    pair.catch_up()


def test_one_that_is_here_is_replaced(waits: Pair) -> None:
    """Somebody has written past the guards: the stream has stopped at that region."""
    install(waits)
    connection = apsw.Connection(str(waits.secondary.region("two").path))
    connection.create_scalar_function("replicate_connect_is_required", lambda *_: 0)
    connection.execute("UPDATE account SET balance = 999")
    connection.close(True)
    write(waits, "two", "UPDATE account SET balance = 1")
    with pytest.raises(ConflictError):
        waits.catch_up()
    with pytest.raises(AlreadyExistsError, match=r"region two is here .*seed --region two --restart"):
        install(waits)
    with pytest.raises(TryAgainError, match="its Update Process does not run"):  # the others lack the copy's moment
        install(waits, restart=True)
    waits.secondary.reload()
    assert waits.secondary.waiting == ("two",)
    waits.catch_up()
    install(waits)
    assert_equal(waits)


def test_several_at_once_and_one_after_another(pair: Pair) -> None:
    pair.write(1)
    for name in ("two", "three", "four"):
        add_with_rows(pair, name)
    write(pair, "three", "UPDATE account SET balance = 3")
    pair.catch_up()
    install_alone(pair.secondary, pair.directory / "some.seed", ["two", "four"]) if made(pair, "two", "four") else None
    assert_level_but_for(pair, "three")
    write(pair, "four", "UPDATE account SET balance = 4")
    pair.catch_up()
    seed_alone(pair.primary, pair.secondary, ["three"])
    pair.secondary.reload()
    assert_equal(pair)


def test_added_again_after_the_copy(waits: Pair) -> None:
    """What was written between a release and the addition is in no journal."""

    def add_again(pair: Pair) -> None:
        path = pair.primary.region("two").path
        pair.acknowledge()
        release_region(pair.primary, "two", timeout_s=30, force=True)
        connection = apsw.Connection(str(path))
        connection.execute("UPDATE account SET balance = 12345")
        connection.close(True)
        pair.primary.reload()
        add_region(pair.primary, path, name="two")
        pair.primary.reload()
        pair.catch_up()

    with pytest.raises(TryAgainError, match=r"region two was added again by transaction \d+"):
        install(waits, between=add_again)
    waits.secondary.reload()
    assert_level_but_for(waits, "two")
    install(waits)
    assert_equal(waits)


def test_the_journal_is_kept_for_it_and_must_reach_back(waits: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    config = waits.secondary.config
    small = replace(config.journal, segment_bytes=1 << 20, rollback_bytes=0)
    waits.secondary.config = replace(config, journal=small)

    def prune(pair: Pair) -> None:
        for _ in range(4):
            write(pair, "main", "INSERT INTO entry (data) VALUES (zeroblob(700000))")
            pair.catch_up()
        with door_of(pair.secondary) as door:
            prune_journal(door)

    real = some_regions.take_in
    left: list[int] = []

    def taken_in(*arguments: Any, **more: Any) -> Any:
        prune(waits)
        left.extend(make_chain(waits.secondary).first_seqnos())
        return real(*arguments, **more)

    monkeypatch.setattr(some_regions, "take_in", taken_in)
    install(waits)
    assert len(left) > 3
    assert_equal(waits)
    monkeypatch.setattr(some_regions, "take_in", real)
    with pytest.raises(JournalMissingError, match=r"the copy is of transaction \d+, and the journal here begins with"):
        install(waits, restart=True, between=prune)


def test_a_copy_of_another_history_is_refused(waits: Pair) -> None:
    """The primary was restored: it has other transactions under the numbers."""
    made(waits)
    path = waits.directory / "some.seed"
    with SeedReader(path) as reader:
        header, catalogue = reader.header, reader.catalogue
    chains = {origin: (last, chain ^ 1) for origin, (last, chain) in header.position.chains.items()}
    copies = some_regions.Copies(
        waits.directory / "copies", ("two",), replace(header.position, chains=chains), header.csn, catalogue, 1
    )
    with (
        some_regions.filling(waits.secondary, ["two"], restart=False),
        pytest.raises(DivergedError, match="another history"),
    ):
        some_regions.take_in(waits.secondary, copies)
    assert_level_but_for(waits, "two")


def refused(pair: Pair, error: type[ReplicateError], text: str, names: tuple[str, ...] = ("two",), **how: bool) -> None:
    with pytest.raises(error, match=text):
        install_alone(pair.secondary, made(pair), names, **how)  # type: ignore[arg-type]


def test_what_is_refused_changes_nothing(waits: Pair) -> None:
    secondary = waits.secondary
    refused(waits, UsageError, "the file holds region two", ("main",))
    with pytest.raises(NotFoundError, match="has no region nowhere; it has main, two"):
        made(waits, "nowhere")
    with (
        pytest.raises(NotFoundError, match="knows no region nowhere; here: main; waiting: two"),
        some_regions.filling(secondary, ["nowhere"], restart=False),
    ):
        pass
    with (
        pytest.raises(UsageError, match="no other region is here that could go on"),
        some_regions.filling(secondary, ["main"], restart=True),
    ):
        pass
    with (
        pytest.raises(PermissionRefusedError, match="only a secondary is seeded"),
        some_regions.filling(waits.primary, ["main"], restart=True),
    ):
        pass
    with pytest.raises(UsageError, match=r"the file holds only region two.*--region two"):
        install_file(secondary, made(waits), restart=True)
    whole = waits.directory / "whole.seed"
    make_seed(waits.primary, "west", whole)
    with pytest.raises(UsageError, match="the file holds all regions: main, two"):
        install_alone(secondary, whole, ["two"])
    note_content(secondary.run_directory, None, Content("00", "east", "a filter"))
    refused(waits, UsageError, "goes through the filter a filter, and a copy would not")
    (secondary.run_directory / "filter.json").unlink()
    assert_level_but_for(waits, "two")


def test_an_update_process_that_does_not_stand_aside_is_named(waits: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_regions, "LOCK_TIMEOUT_S", 0.1)
    fd = DaemonFiles(waits.secondary.path, "update").lock.acquire()
    try:
        with (
            pytest.raises(AlreadyRunningError, match=r"has not stood aside within 0\.1 s"),
            update_aside(waits.secondary),
        ):
            pass
    finally:
        os.close(fd)


def test_one_that_cannot_be_rolled_forward_waits_again(waits: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy whose rows are not those of its moment: no opening of the instance stops at that."""
    real = some_regions.adopt_at

    def forged(path: os.PathLike[str], **facts: object) -> None:
        connection = apsw.Connection(str(path))
        connection.create_scalar_function("replicate_connect_is_required", lambda *_: 0)
        connection.execute("UPDATE account SET balance = 77")
        connection.close(True)
        real(path, **facts)  # type: ignore[arg-type]

    monkeypatch.setattr(some_regions, "adopt_at", forged)
    with pytest.raises(ConflictError):
        install(waits, between=more)
    waits.secondary.reload()
    assert_level_but_for(waits, "two")
    monkeypatch.setattr(some_regions, "adopt_at", real)
    install(waits)
    assert_equal(waits)


@pytest.mark.slow
@pytest.mark.parametrize("is_off", [False, True], ids=["killed", "and the pool is lost"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step_the_same_command_ends_it(waits: Pair, step: str, is_off: bool) -> None:
    if step == "alone.left":
        install(waits)
    path = made(waits)
    more(waits)
    pid = os.fork()
    if pid == 0:
        try:
            failpoint.arm(f"{step}:1:kill")
            install_alone(waits.secondary, path, ["two"], restart=step == "alone.left")  # type: ignore[arg-type]
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), status
    if is_off:
        lose_power(waits)
    waits.secondary.reload()
    is_in = "two" not in waits.secondary.waiting
    assert is_in == (step == "alone.registered")
    write(waits, "two", "UPDATE account SET balance = 8")
    waits.catch_up()
    if not is_in:
        shutil.rmtree(waits.secondary.path / "regions" / "seed", ignore_errors=True)  # the copy, which comes again
        assert_level_but_for(waits, "two")
        install(waits)
    assert_equal(waits)


def test_every_step_is_known() -> None:
    text = Path(some_regions.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'\bhit\("([a-z_.]+)"\)', text)) == set(STEPS)
