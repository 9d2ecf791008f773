"""What a secondary has received and not applied may be the only copy: no release and no removal takes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicate.admin.instance_removal import remove_instance
from replicate.admin.region_release import release_region
from replicate.audit.query import Query
from replicate.audit.show import show_journal
from replicate.errors import UndeliveredError
from replicate.instance.consumers import Consumer, write_consumer
from replicate.instance.instance import Instance
from replicate.pool.receive_pool import ReceivePool, RecordKind
from tests.harness.pair import Pair
from tests.replicate.lost.test_keep import lines_of
from update_process.process import finish_received


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The secondary is seeded, and has applied three transactions since."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    made.write(3)
    made.catch_up()
    return made


@pytest.fixture
def received(pair: Pair) -> Iterator[ReceivePool]:
    """Two transactions, a large one, and two for a new table, received and not applied."""
    pair.write(2)
    with pair.connect() as connection:
        connection.executemany("INSERT INTO entry VALUES ('at', 1.5, ?)", [(b"x" * 1000,)] * 1500)
    with pair.connect() as connection:
        connection.execute("CREATE TABLE late (a)")
        connection.execute("INSERT INTO late VALUES (1)")
    connection.close()
    with pair.receive_pool() as pool:
        assert pair.deliver(pool) == pair.last_seqno()
        pool.note_receiver(0, 0, connected=False)
    return pool


def expected(pair: Pair, first: int) -> list[dict[str, object]]:
    """As the primary's journal has them, but for what is each journal's own."""
    from replicate.cli.common import plain

    return [without_mark(plain(one)) for one in show_journal(pair.primary, Query(first), parts=True)]


def without_mark(line: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in line.items() if key != "mark"}


def test_a_release_applies_it_first(pair: Pair, received: object) -> None:
    last = pair.last_seqno()
    release_region(pair.secondary, "main", timeout_s=60, finish=lambda: finish_received(pair.secondary, timeout_s=60))
    assert list(show_journal(pair.secondary))[-1].seqno == last
    assert remove_instance(Instance.open(pair.secondary.path), purge=True).kept is None


def test_a_release_by_force_writes_it(pair: Pair, received: object) -> None:
    last = pair.last_seqno()
    released = release_region(pair.secondary, "main", timeout_s=5, force=True)
    assert released.kept is not None
    assert released.kept.file.path == pair.directory / f"west-lost-{last - 4}-{last}.jsonl"
    first, *lines, end = lines_of(released.kept.file.path)
    assert first["peers"] == []
    assert end["transactions"] == 5
    assert end["unreadable"] == []
    assert [without_mark(line) for line in lines] == expected(pair, last - 4)


def test_a_purge_is_refused_until_it_is_applied_or_written(pair: Pair, received: object) -> None:
    last = pair.last_seqno()
    what = rf"5 transactions \({last - 4} to {last}\) received and not yet applied .*update start, then update stop"
    with pytest.raises(UndeliveredError, match=what) as caught:
        remove_instance(pair.secondary, purge=True)
    assert f"replicate instance remove {pair.secondary.named} --purge --force" in caught.value.do
    assert "journal show" not in caught.value.do  # nothing of it is in the journal
    removed = remove_instance(pair.secondary, purge=True, force=True)
    assert removed.kept is not None
    assert len(lines_of(removed.kept.file.path)) > 6
    assert not pair.secondary.path.exists()


def test_a_large_one_of_which_parts_are_gone_is_named(pair: Pair, received: object) -> None:
    last = pair.last_seqno()
    pool = ReceivePool.attach(pair.secondary.content.uuid)
    part = next(one for one in pool.peek() if one.kind is RecordKind.PARTS)
    pool.free(part.next_address)
    pool.close()
    released = release_region(pair.secondary, "main", timeout_s=5, force=True)
    assert released.kept is not None
    _, *lines, end = lines_of(released.kept.file.path)
    assert [line["kind"] for line in lines] == ["LARGE", "TRANSACTION", "TRANSACTION"]
    assert [(one["from"], one["to"]) for one in end["unreadable"]] == [(last - 4, last - 3), (last - 2, last - 2)]


def test_a_secondary_that_sends_on_keeps_what_the_third_site_has_not_got(pair: Pair) -> None:
    last = pair.last_seqno()
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    write_consumer(pair.secondary.consumers_directory, Consumer("third", last - 1))
    finish = lambda: finish_received(pair.secondary, timeout_s=60)  # noqa: E731
    with pytest.raises(UndeliveredError, match=rf"1 transaction \({last}\) is on no peer; third has those up to"):
        release_region(pair.secondary, "main", timeout_s=5, finish=finish)
    write_consumer(pair.secondary.consumers_directory, Consumer("third", last))
    assert release_region(pair.secondary, "main", timeout_s=5, finish=finish).kept is None
    assert "lost" not in " ".join(os.listdir(pair.directory))
