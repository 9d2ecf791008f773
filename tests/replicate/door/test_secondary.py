"""The commit door as the Update Process uses it: batches, two regions, kills, recovery on a secondary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from replicate.door.recovery.opening import make_chain
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.errors import InternalError, JournalMissingError, PermissionRefusedError, RegionDamagedError
from replicate.instance.instance import Instance
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.record import FrameBatch, decode_batch, read_head
from replicate.journal.walk import walk
from replicate.model.transaction import Kind
from replicate.pool import control as word
from replicate.region.sqlite.open import open_region
from replicate.system import failpoint
from replicate.system.failpoint import FailpointError
from tests.harness.applying import apply_batch, apply_large, apply_rows, batches, following
from tests.harness.instances import (
    begin_large,
    change_schema,
    door_of,
    insert,
    lose_pool,
    make_primary,
    make_secondary,
    newest_segment,
    read_journal,
    restore_region,
    rows,
    save_region,
    session_of,
)

pytestmark = pytest.mark.usefixtures("shared_memory")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Instance, Instance]:
    """A primary with two regions and a secondary seeded from it."""
    primary = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with session_of(primary) as session:
        insert(session, 1)
    return primary, make_secondary(tmp_path / "beta", primary)


def apply_all(session: ApplySession, primary: Instance) -> None:
    """Bring the secondary up to the primary, batch by batch."""
    for batch in batches(primary, session.position.last_seqno + 1):
        if isinstance(batch, FrameBatch):
            apply_batch(session, batch)
        else:
            apply_large(session, batch)


def check_equal(primary: Instance, secondary: Instance) -> None:
    """Rows and journals of both are the same, and the position follows from the journal."""
    for entry in primary.regions:
        assert rows(entry.path) == rows(secondary.region(entry.name).path), entry.name
    with door_of(secondary) as door:
        first = make_chain(secondary).oldest_seqno()
        assert door.words[word.LAST_DURABLE_SEQNO] == door.words[word.LAST_SEQNO]
        with door.locked():
            there = door.position()
    with door_of(primary) as door, door.locked():
        here = door.position()
    assert (there.last_seqno, dict(there.chains)) == (here.last_seqno, dict(here.chains))
    ours, theirs = read_journal(secondary, first).transactions, read_journal(primary).transactions
    assert {s: (t.kind, t.origin_seqno, t.chain) for s, t in ours.items()} == {
        s: (t.kind, t.origin_seqno, t.chain) for s, t in theirs.items() if s >= first
    }


def write(primary: Instance, first: int, count: int) -> None:
    with session_of(primary) as main, session_of(primary, "two") as two:
        for row_id in range(first, first + count):
            insert(main, row_id)
            insert(two, row_id)


def test_batches_of_two_regions_arrive(pair: tuple[Instance, Instance]) -> None:
    primary, secondary = pair
    session = open_apply_session(secondary)
    for number in range(3):
        write(primary, 10 + 100 * number, 20)
        apply_all(session, primary)
    session.close()
    session.door.close()
    check_equal(primary, secondary)


def test_a_rollback_takes_everything_back(pair: tuple[Instance, Instance]) -> None:
    primary, secondary = pair
    write(primary, 10, 3)
    session = open_apply_session(secondary)
    (batch,) = batches(primary, session.position.last_seqno + 1)
    assert isinstance(batch, FrameBatch)
    session.begin()
    apply_rows(session, batch.data)
    session.rollback()
    session.begin()
    wrong = FrameBatch(batch.first_seqno + 1, batch.last_seqno, 1, batch.data)
    with pytest.raises(InternalError, match="does not follow"):
        session.commit(wrong, session.position, 0, last=read_head(batch.data))
    position, csn = following(session.position, batch.data)
    session.begin()
    with pytest.raises(InternalError, match="should end with"):
        session.commit(batch, position, csn, last=read_head(batch.data))
    apply_all(session, primary)
    session.close()
    session.door.close()
    check_equal(primary, secondary)


@contextmanager
def dying_at(step: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The block dies at a failpoint, or `between` the COMMITs of two regions."""

    def first_only(self: ApplySession, seqno: int) -> None:
        self._open[0].region.commit()
        raise FailpointError("between")

    with monkeypatch.context() as patch:
        if step == "between":
            patch.setattr(ApplySession, "_commit_regions", first_only)
        else:
            failpoint.arm(f"{step}:raise")
        yield


KILLS = ("append.before_write:1", "append.after_write:1", "apply.after_commit:1", "finish.before_publish:1")


@pytest.mark.turns(4)
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize("step", [*KILLS, "between"])
def test_faults_9_10_killed_in_the_commit_of_a_batch(
    pair: tuple[Instance, Instance], step: str, reboot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`raise` leaves behind what a kill would: the process's objects are dropped. `between` is after the first
    region's COMMIT, and before the second's."""
    primary, secondary = pair
    write(primary, 10, 5)
    session = open_apply_session(secondary)
    with dying_at(step, monkeypatch), pytest.raises(FailpointError):
        apply_all(session, primary)
    session.close()
    session.door.close()
    if reboot:
        lose_pool(secondary)
    session = open_apply_session(secondary)
    apply_all(session, primary)
    session.close()
    session.door.close()
    check_equal(primary, secondary)


def test_a_batch_that_failed_after_its_append_is_finished_by_the_next_begin(pair: tuple[Instance, Instance]) -> None:
    primary, secondary = pair
    write(primary, 10, 5)
    session = open_apply_session(secondary)
    failpoint.arm("append.after_write:1:raise")
    with pytest.raises(FailpointError):
        apply_all(session, primary)
    session.begin()
    assert session.position.last_seqno == batches(primary, 1)[-1].last_seqno  # type: ignore[union-attr]
    session.rollback()
    write(primary, 100, 5)
    apply_all(session, primary)
    session.close()
    session.door.close()
    check_equal(primary, secondary)


@pytest.mark.turns(4)
@pytest.mark.parametrize("reboot", [False, True])
@pytest.mark.parametrize(
    "step", ["", "adopt.before_rename:1", "adopt.after_rename:1", "between", "apply.after_commit:1"]
)
def test_a_large_transaction_as_the_first_of_an_empty_segment(
    pair: tuple[Instance, Instance], step: str, reboot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary, secondary = pair
    with session_of(primary) as main:
        main.commit(begin_large(main, 1000, 300))
    write(primary, 10, 2)
    session = open_apply_session(secondary)
    if step:
        with dying_at(step, monkeypatch), pytest.raises(FailpointError):
            apply_all(session, primary)
        session.close()
        session.door.close()
        for spool in secondary.journal_directory.glob("*.spool"):
            spool.unlink()
        if reboot:
            lose_pool(secondary)
        session = open_apply_session(secondary)
    apply_all(session, primary)
    session.close()
    session.door.close()
    check_equal(primary, secondary)


def test_fault_33_an_older_region_is_rolled_forward_and_a_torn_batch_is_asked_for_again(
    pair: tuple[Instance, Instance], tmp_path: Path
) -> None:
    primary, secondary = pair
    path = secondary.region("two").path
    save_region(path, tmp_path / "aside")
    write(primary, 10, 5)
    session = open_apply_session(secondary)
    apply_all(session, primary)
    end = int(session.door.words[word.END_OFFSET])
    session.close()
    session.door.close()
    restore_region(path, tmp_path / "aside")
    lose_pool(secondary)
    open_apply_session(secondary).door.close()
    assert rows(path) == rows(primary.region("two").path)
    with open(newest_segment(secondary), "r+b") as file:  # a half written frame after the end
        file.seek(end)
        file.write(b"\xce\x00\x00\x00\xff\xce")
    lose_pool(secondary)
    write(primary, 100, 5)
    session = open_apply_session(secondary)
    apply_all(session, primary)
    session.close()
    session.door.close()
    assert Instance.open(secondary.path).content.incarnation == 1
    check_equal(primary, secondary)


def test_a_region_older_than_the_journal_is_refused(pair: tuple[Instance, Instance], tmp_path: Path) -> None:
    primary, secondary = pair
    path = secondary.region("two").path
    save_region(path, tmp_path / "aside")
    session = open_apply_session(secondary)
    write(primary, 10, 5)
    apply_all(session, primary)
    session.door.words[word.SEGMENT_SEALED] = 1
    write(primary, 100, 5)
    apply_all(session, primary)
    session.close()
    session.door.close()
    min(secondary.journal_directory.glob("*.journal")).unlink()
    restore_region(path, tmp_path / "aside")
    lose_pool(secondary)
    with pytest.raises(JournalMissingError, match="old copy"):
        open_apply_session(secondary)


@pytest.mark.parametrize("table", ["_replicate_scr", "_replicate_ring", "sqlite_schema"])
def test_fault_49_a_damaged_page_is_named_with_its_region(pair: tuple[Instance, Instance], table: str) -> None:
    primary, secondary = pair
    with closing(open_apply_session(secondary)) as session:
        write(primary, 10, 5)
        apply_all(session, primary)
        session.door.close()
    path = secondary.region("two").path
    with closing(open_region(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        size = connection.pragma("page_size")
        query = "SELECT coalesce((SELECT rootpage FROM sqlite_schema WHERE name = ?), 1)"
        page = connection.execute(query, (table,)).fetchall()[0][0]
    with open(path, "r+b") as file:
        file.seek((page - 1) * size + (100 if page == 1 else 0))
        file.write(b"\xff" * 200)
    with pytest.raises(RegionDamagedError) as caught:
        open_apply_session(secondary)
    assert str(path) in str(caught.value)


def test_two_incarnations_and_a_schema_change_in_one_stream(pair: tuple[Instance, Instance]) -> None:
    primary, secondary = pair
    write(primary, 10, 2)
    with door_of(primary):
        pass
    primary.raise_incarnation()
    lose_pool(primary)
    write(primary, 20, 2)
    with session_of(primary) as main:
        change_schema(main, "CREATE TABLE u(a INTEGER PRIMARY KEY)", "u")
    session = open_apply_session(secondary)
    for piece in batches(primary, session.position.last_seqno + 1):
        assert isinstance(piece, FrameBatch)
        for offset, head in walk(piece.data):
            data = piece.data[offset : offset + head.frame_bytes]
            body = decode_batch(data)[2]
            session.begin()
            defines = head.kind == Kind.HISTORY
            if head.kind == Kind.TRANSACTION and body[FIXED_ELEMENTS] == 5:
                session.rows["main"].apply_all(body, FIXED_ELEMENTS)
                defines = True
            else:
                apply_rows(session, data)
            position, csn = following(session.position, data)
            session.commit(FrameBatch(head.seqno, head.seqno, 1, data), position, csn, defines=defines, last=head)
    session.close()
    session.door.close()
    check_equal(primary, secondary)
    lose_pool(secondary)
    with door_of(secondary) as door:
        catalogue = door.catalogue_now()
    assert {d.table for d in catalogue.definitions.values()} == {"t", "u"}
    assert len(catalogue.histories) == 2
    check_equal(primary, secondary)


def test_a_batch_begins_a_new_segment_when_it_does_not_fit(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "alpha", regions=("main", "two"))
    secondary = make_secondary(tmp_path / "beta", primary)
    (secondary.path / "replicate.toml").write_text("[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n")
    session = open_apply_session(Instance.open(secondary.path))
    with session_of(primary) as main:
        for row_id in range(700):
            insert(main, row_id, "v" * 3000)
    apply_all(session, primary)
    session.close()
    session.door.close()
    assert len(list(secondary.journal_directory.glob("*.journal"))) >= 2
    check_equal(primary, secondary)
    lose_pool(secondary)
    check_equal(primary, secondary)


def test_a_primary_has_no_apply_session(tmp_path: Path) -> None:
    primary = make_primary(tmp_path / "alpha")
    with pytest.raises(PermissionRefusedError):
        open_apply_session(primary)
