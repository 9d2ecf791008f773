"""The vectors of two sites beside each other: who would send what to whom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.compare.ruv import Ruv, compare_ruvs, parse, ruv_of, told
from replicate.errors import DamagedError, FormatUnknownError, UsageError, WrongNetworkError
from replicate.instance.instance import Instance
from tests.harness.pair import Pair
from tests.harness.suppliers import Suppliers


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def by_file(instance: Instance) -> Ruv:
    return parse(json.dumps(told(ruv_of(instance))), where="x")


def test_level_behind_and_ahead_in_both_directions(two: Suppliers) -> None:
    a, b = two.by["a"], two.by["b"]
    found = compare_ruvs(ruv_of(a), by_file(b))
    assert [one.text for one in found.directions] == ["a has nothing to send to b", "b has nothing to send to a"]
    assert {one.relation for one in found.origins} == {"level"}
    two.write("a", 3)
    two.write("b", 2)
    found = compare_ruvs(by_file(a), ruv_of(b))
    assert [one.text for one in found.directions] == ["a sends to b: 3 of a", "b sends to a: 2 of b"]
    assert {(one.name, one.relation) for one in found.origins if one.relation != "level"} == {
        ("a", "behind"), ("b", "ahead"),
    }  # fmt: skip
    assert found.is_well
    for one in found.origins:
        assert found.minimum[f"{one.name} {one.incarnation}"] == min(one.ours, one.theirs)


def test_what_was_pruned_is_named(two: Suppliers) -> None:
    a, before = two.by["a"], by_file(two.by["b"])
    two.write("a", 3)
    here = ruv_of(a)
    newest = max(one.incarnation for one in here.origins if one.name == "a")
    origins = tuple(
        replace(one, held_from=one.last) if (one.name, one.incarnation) == ("a", newest) else one
        for one in here.origins
    )
    found = compare_ruvs(replace(here, origins=origins), before)
    first = found.directions[0]
    assert not first.is_well
    assert "a refuses b: of a (origin " in first.text
    assert "another supplier may still have them" in first.text
    assert first.do
    assert not found.is_well


def test_a_primary_and_its_secondary_have_vectors_too(pair: Pair) -> None:
    pair.write(3)
    pair.catch_up()
    pair.write(1)
    found = compare_ruvs(ruv_of(pair.primary), ruv_of(pair.secondary))
    said = ["east sends to west: 1 of east", "west has nothing to send to east"]
    assert [one.text for one in found.directions] == said


def test_nonsense_is_refused(two: Suppliers) -> None:
    facts = told(ruv_of(two.by["a"]))
    with pytest.raises(UsageError, match="both vectors are of a"):
        compare_ruvs(ruv_of(two.by["a"]), by_file(two.by["a"]))
    other = parse(json.dumps({**facts, "network": "x", "uuid": "00" * 16}), where="x")
    with pytest.raises(WrongNetworkError):
        compare_ruvs(ruv_of(two.by["a"]), other)
    with pytest.raises(FormatUnknownError, match="format 2"):
        parse(json.dumps({**facts, "format": 2}), where="x")
    wrong: list[dict[str, object]] = [{"seqno": "1"}, {"more": 1}, {"origins": [{}]}, {"uuid": "zz"}]
    for broken in ([], *({**facts, **one} for one in wrong)):
        with pytest.raises(DamagedError, match="no vector"):
            parse(json.dumps(broken), where="x")
    with pytest.raises(DamagedError):
        parse("{", where="x")
