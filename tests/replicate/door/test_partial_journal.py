"""door/partial_journal.py: the flag in segments' headers, until the instance is made primary. Who sets it for
partitions: tests/replicate/admin/test_subscriptions_marked.py; for filters: tests/source_server/test_filtering.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.partial_journal import mark_partial
from replicate.errors import NotFoundError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.roles.change_of_role import become_primary
from tests.harness.pair import Pair
from tests.harness.sites import Sites


def flags(instance: Instance) -> list[bool]:
    """Of each segment, oldest first."""
    chain = Chain(instance.journal_directory)
    return [chain.segment(number).header.is_partial for number in chain.first_seqnos()]


def test_of_all_that_comes_from_there_on(pair: Pair) -> None:
    pair.write(2)
    pair.catch_up()
    assert flags(pair.secondary) == [False]
    mark_partial(pair.secondary)
    assert flags(pair.secondary) == [False, True]
    pair.write(2)
    pair.catch_up()
    mark_partial(pair.secondary)
    assert flags(pair.secondary) == [False, True]
    assert pair.last_seqno(pair.secondary) == pair.last_seqno()
    chain = Chain(pair.secondary.journal_directory)
    second = chain.first_seqnos()[1]
    assert (chain.is_partial(second), chain.is_partial(second - 1), chain.is_partial()) == (True, True, True)
    assert chain.whole_end().first_seqnos() == []


def test_one_that_is_empty_gives_way_to_one_that_says_so(pair: Pair) -> None:
    mark_partial(pair.secondary)
    assert flags(pair.secondary) == [True]


def test_without_a_journal(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        mark_partial(Instance.create(tmp_path / "west", role="secondary", name="west", network=bytes(16)))


def test_what_is_written_as_primary_is_whole(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    sites.write(1)
    sites.catch_up()
    mark_partial(sites.secondary)
    sites.write(2)
    sites.catch_up()
    seqno = sites.switch()
    made = sites.primary
    assert flags(made) == [False, True, False]
    chain = Chain(made.journal_directory)
    assert chain.first_seqnos()[-1] == seqno + 1
    assert chain.whole_end().first_seqnos() == [seqno + 1]
    assert (chain.is_partial(seqno), chain.is_partial(seqno + 1)) == (True, False)
    sites.write(3)
    sites.catch_up()
    assert flags(made) == [False, True, False]
    sites.switch()  # and back: what comes now is its own again
    sites.write(1)
    sites.catch_up()
    assert flags(made)[-1] is False


def test_made_primary_where_nothing_has_come_since(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    mark_partial(sites.secondary)
    assert flags(sites.secondary) == [True]
    become_primary(sites.secondary)
    assert flags(sites.secondary) == [False]
