"""Synchronization checkpoint records, and what two arrays of them say of each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.compare import scr
from replicate.compare.scr import Array, BothArrays, array_of, compare_with, parse, told, verdict_of
from replicate.door.snapshot import door_of
from replicate.errors import DamagedError, FormatUnknownError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from replicate.wire.message import Restart
from replicate.wire.resync import Diverged, JournalMissing, RollbackFirst, SecondaryAhead, StartAt
from source_server.restart import agree
from tests.harness.pair import Pair
from tests.harness.sites import Sites


@pytest.fixture
def level(pair: Pair) -> Pair:
    pair.write(3)
    pair.catch_up()
    return pair


def states(found: BothArrays) -> list[str]:
    return [row.state for row in found.rows]


def by_file(here: Instance, other: Instance) -> BothArrays:
    """With what the other host prints."""
    return compare_with(here, parse(json.dumps(told(array_of(other))), where="x"))


def test_an_array_names_its_origins_and_both_numbers_of_their_last_transactions(level: Pair) -> None:
    """A history record is in the journal, and counts for no origin."""
    array = array_of(level.primary)
    (one,) = array.records
    assert (one.audit_name, one.partition_id, one.log_file_timestamp) == ("east", "DEFAULT", 1)
    assert (one.local_commit_id, array.seqno) == (level.last_seqno(), level.last_seqno())
    assert one.global_commit_id == one.local_commit_id - 1
    there = array_of(level.secondary).records
    assert there == (one,)


def test_even_behind_and_even_again(level: Pair) -> None:
    both = (level.primary, level.secondary)
    for compare in (compare_with, by_file):
        for here, other in (both, both[::-1]):
            found = compare(here, other)
            assert (found.source, found.secondary, states(found)) == ("east", "west", ["even"])
            assert (found.text, found.is_well, found.is_proven) == (
                f"both are even, at transaction {level.last_seqno()}", True, True,
            )  # fmt: skip
    level.write(2)
    for compare, here, other in (
        (compare_with, *both), (compare_with, *both[::-1]), (by_file, *both)
    ):  # fmt: skip
        found = compare(here, other)
        assert states(found) == ["behind by 2"]
        assert found.text == f"west is behind by 2, and goes on at transaction {level.last_seqno() - 1}"
        assert (found.is_well, found.rows[0].difference) == (True, 2)
    found = by_file(*both[::-1])
    assert (states(found), found.is_well, found.is_proven) == (["behind by 2"], True, False)
    assert "only east can prove" in found.text
    assert "replicate -i east scr --with-scr FILE" in found.do
    level.catch_up()
    assert states(by_file(*both)) == ["even"]


def test_right_after_a_seed_both_are_even(pair: Pair) -> None:
    pair.write(3)
    pair.seed(restart=True)
    assert states(compare_with(pair.primary, pair.secondary)) == ["even"]


def test_ahead_is_refused_with_the_handshakes_words(level: Pair) -> None:
    """The primary's array is of before what the secondary has by now: as of one that was restored."""
    old = array_of(level.primary)
    level.write(2)
    level.catch_up()
    found = compare_with(level.secondary, old)
    assert (states(found), found.is_well) == (["ahead by 2"], False)
    assert "west is ahead, and refused: of origin" in found.text
    assert found.do


def test_the_old_primary_is_ahead_and_even_again_after_its_rollback(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    sites = Sites.create(tmp_path)
    sites.add_peers()
    sites.write(2)
    sites.seed()
    east, west = sites.primary, sites.secondary
    common = sites.last_seqno()
    sites.write(3)
    become_primary(west)
    become_secondary(east)
    for compare in (compare_with, by_file):
        found = compare(west, east)
        assert (found.source, found.is_well) == (west.name, False)
        assert [row.audit_name for row in found.rows] == [east.name, west.name]
        assert states(found)[0] == "ahead by 3"
        assert f"rollback --to {common}" in found.text + found.do
    rollback(east, common)
    found = compare_with(west, east)
    assert (states(found)[0], found.is_well) == ("even", True)
    assert array_of(west).records[0].local_commit_id == common


def test_diverged_and_what_must_be_seeded(level: Pair) -> None:
    array = array_of(level.secondary)
    (one,) = array.records
    forged = replace(array, records=(replace(one, chain=f"{int(one.chain, 16) ^ 1:016x}"),))
    found = compare_with(level.primary, forged)
    assert (states(found), found.is_well) == (["diverged"], False)
    assert "west is diverged: before transaction" in found.text
    level.write(3)
    source = replace(array_of(level.primary), oldest_seqno=level.last_seqno())
    found = verdict_of(source, array, JournalMissing(array.seqno + 1, source.oldest_seqno))
    assert "must be seeded" in found.text
    found = compare_with(level.secondary, source)
    assert (found.is_well, "must be seeded" in found.text) == (False, True)


def test_it_says_what_the_source_server_would(level: Pair) -> None:
    """`agree` answers the connection; the same words, or the same place."""
    level.write(2)
    found = compare_with(level.primary, level.secondary)
    array = array_of(level.secondary)
    at = scr._position(array)
    with door_of(level.primary) as door:
        agreed = agree(door, Restart(array.seqno + 1, at.vector, at.chains))
    assert f"goes on at transaction {agreed.from_seqno}" in found.text


def test_what_is_refused(level: Pair, tmp_path: Any) -> None:
    array = array_of(level.secondary)
    with pytest.raises(WrongNetworkError):
        compare_with(level.primary, replace(array, network="00000000-0000-4000-8000-000000000001"))
    with pytest.raises(UsageError, match="even with itself"):
        compare_with(level.secondary, array)
    text = json.dumps(told(array))
    with pytest.raises(FormatUnknownError, match="format 3, this release knows 1 and 2"):
        parse(text.replace('"format": 1', '"format": 3'), where="x")
    for wrong in ("", "{}", "[]", "null", text.replace('"seqno": ', '"seqno": -'), text.replace('"begins"', '"ends"'),
                  text.replace('"chain": "', '"chain": "z'),
                  text.replace('"log_file_timestamp": ', f'"log_file_timestamp": {1 << 40}'),
                  text.replace('"took_over_at": 0', '"took_over_at": 1'),
                  re.sub('"instance": "[0-9a-f]{32}"', '"instance": ""', text)):  # fmt: skip
        with pytest.raises(DamagedError, match="no array of checkpoint records"):
            parse(wrong, where="x")


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_nonsense_is_one_error(value: Any) -> None:
    with pytest.raises(DamagedError):
        parse(json.dumps(value), where="x")


NUMBERS = st.integers(0, 9)


@given(NUMBERS, NUMBERS, st.sampled_from(["start", "ahead", "rollback", "diverged", "missing"]))
def test_each_decision_has_its_words_and_rows(source: int, secondary: int, kind: str) -> None:
    """Whatever the numbers: a refusal is one, and the state of a row goes by its numbers."""
    record = scr.Record("east", "DEFAULT", source, 1, source + 1, "0" * 16, "ab" * 16, 1, 0, 0)
    ours = Array("east", "ab" * 16, "n", "primary", source + 1, 1, (record,))
    theirs = replace(ours, instance="west", seqno=secondary + 1, records=(replace(record, global_commit_id=secondary),))
    key = scr._key(record)
    decision = {
        "start": StartAt(secondary + 2, 0),
        "ahead": SecondaryAhead(secondary + 1, source + 1),
        "rollback": RollbackFirst(key, secondary, min(source, secondary)),
        "diverged": Diverged(secondary + 2, key, (source, 1), (secondary, 2)),
        "missing": JournalMissing(secondary + 2, source + 1),
    }[kind]
    found = verdict_of(ours, theirs, decision)  # type: ignore[arg-type]
    assert found.is_well == (kind == "start")
    (row,) = found.rows
    assert row.difference == abs(source - secondary)
    expected = "even" if source == secondary else "behind" if source > secondary else "ahead"
    assert row.state.startswith("diverged" if kind == "diverged" else expected)
    assert found.text
