"""model/partitions.py: a history of changes against a plain model, and each thing that is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.errors import AlreadyExistsError, NotFoundError, NotSupportedError, UsageError
from replicate.limits import PARTITION_MAX, PARTITION_NONE
from replicate.model.elements import PLACED
from replicate.model.partitions import DEFAULT, ONLY_DEFAULT, Partitions, unpack

names = st.sampled_from(("", "sales", "SALES", "stock", "hr", "DEFAULT", "none", "7", "All"))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), names, st.one_of(st.none(), st.integers(-1, 66))),
        st.tuples(st.just("drop"), names),
        st.tuples(st.just("default"), names),
        st.tuples(st.just("comments"), names),
        st.tuples(st.just("limit"), st.integers(0, 70)),
        st.tuples(st.just("element"), st.sampled_from((*PLACED, "storage", "DATA")), names),
    ),
    max_size=12,
)


def done(now: Partitions, word: str, *given: object) -> Partitions:
    calls = {"create": now.created, "drop": now.dropped, "limit": now.with_limit}
    calls |= {"default": now.with_default, "comments": now.with_comments, "element": now.with_element}
    return calls[word](*given)  # type: ignore[operator]


@given(steps)
def test_no_history_breaks_a_rule(history: list[tuple[object, ...]]) -> None:
    now = ONLY_DEFAULT
    for word, *given_ in history:
        try:
            after = done(now, str(word), *given_)
        except (UsageError, NotFoundError, AlreadyExistsError):
            continue
        assert unpack(json.loads(json.dumps(after.pack()))) == after
        assert after.names[1] == DEFAULT
        assert len(after.names) <= after.limit <= PARTITION_MAX
        assert set(after.elements.values()) <= after.names.keys()
        if word == "element":
            placed, where = str(given_[0]).upper(), str(given_[1])
            rest = {one: number for one, number in now.elements.items() if one != placed}
            assert after.elements == rest | ({} if where == "All" else {placed: now.number(where)})
            assert after.place_of(placed) == after.elements.get(placed, after.elements.get(PLACED[0], 0))
        if word == "create":
            (number,) = set(after.names) - set(now.names)
            assert given_[1] in (None, number)
            assert after.number(str(given_[0])) == after.number(str(number)) == number
            assert number == min(set(range(2, 64)) - set(now.names)) or given_[1] is not None
        now = after


def test_what_is_refused() -> None:
    now = ONLY_DEFAULT.created("sales").created("stock", 9).with_default("sales").with_comments("9")
    assert now.names == {1: "DEFAULT", 2: "sales", 9: "stock"}
    for error, words in (
        (AlreadyExistsError, ("create", "Sales")),
        (AlreadyExistsError, ("create", "hr", 9)),
        (UsageError, ("create", "hr", 64)),
        (UsageError, ("create", "hr", 0)),
        (UsageError, ("create", "NONE")),
        (UsageError, ("create", "comment")),
        (UsageError, ("create", "12")),
        *((UsageError, ("create", bad)) for bad in ("", " ", "a b", "a,b", "a\nb", "-x", "\x1b[1m", "*", "x" * 64)),
        (NotFoundError, ("drop", "hr")),
        (UsageError, ("drop", "default")),
        (UsageError, ("drop", "NONE")),
        (UsageError, ("drop", "sales")),
        (UsageError, ("drop", "stock")),
        (NotFoundError, ("default", "hr")),
        (NotFoundError, ("default", "ALL")),
        (NotFoundError, ("comments", "hr")),
        (NotFoundError, ("element", "DEFINITION", "hr")),
        (UsageError, ("element", "DEFINITION", "NONE")),
        (UsageError, ("element", "COMMENT", "sales")),
        (UsageError, ("element", "triggers", "sales")),
        (NotSupportedError, ("element", "AUTHORIZATION", "sales")),
        (UsageError, ("limit", 2)),
        (UsageError, ("limit", 64)),
    ):
        with pytest.raises(error):
            done(now, *words)  # type: ignore[arg-type]
    assert now.with_default("NONE").default == now.with_comments("none").comments == PARTITION_NONE
    assert now.with_comments("ALL").comments == 0
    assert (now.name(9), now.name(PARTITION_NONE), now.name(30)) == ("stock", "NONE", "30")


def test_names_are_told_another_instance() -> None:
    there = ONLY_DEFAULT.created("sales").created("stock", 4).created("hr", 5)
    there = replace(there, names={**there.names, 7: "x" * 256})  # of a release that took any
    assert there.told(1000) == ("sales", "", "stock", "hr", "", "")
    assert there.told(8 + 3 + 8 + 4) == ("sales", "", "stock")
    assert ONLY_DEFAULT.told(1000) == ()
    here = ONLY_DEFAULT.created("mine", 4).created("HR", 9)
    known = here.calling(there.told(1000))
    assert dict(known.names) == {1: DEFAULT, 2: "sales", 4: "mine", 9: "HR"}
    assert (here.called_otherwise(there.told(1000)), known.called_otherwise(there.told(1000))) == ((2, 4, 5), (4, 5))
    assert known.calling(there.told(1000)) == known
    assert ONLY_DEFAULT.calling(("all", "7", "comment", "ok")) == ONLY_DEFAULT.created("ok", 5)


def test_names_that_are_told_are_above_no_limit() -> None:
    told = tuple(f"p{number}" for number in range(2, 64))
    known = ONLY_DEFAULT.calling(told)
    assert (len(known.names), known.limit) == (63, 63)
    assert known.told(10_000) == told
    assert unpack(known.pack()) == known


def test_a_partition_that_an_element_is_in_is_not_dropped() -> None:
    now = ONLY_DEFAULT.created("defs").created("indexes").with_element("definition", "defs")
    assert "elements" not in ONLY_DEFAULT.created("defs").pack()
    with pytest.raises(UsageError, match="the element DEFINITION belongs to partition defs"):
        now.dropped("defs")
    now = now.with_element("STORAGE", "indexes").with_element("DEFINITION", "ALL")
    assert now.dropped("defs").elements == {"STORAGE": 3}
    assert now.with_element("storage", "all").elements == {}


def test_the_limit_is_raised() -> None:
    now = ONLY_DEFAULT
    for number in range(2, 17):
        now = now.created(f"p{number}")
    with pytest.raises(UsageError, match="no more than 16") as caught:
        now.created("one-more")
    assert "partition limit" in str(caught.value)
    now = now.with_limit(63)
    for number in range(17, 64):
        now = now.created(f"p{number}")
    with pytest.raises(UsageError, match="no more than 63"):
        now.created("the-64th")


@pytest.mark.parametrize(
    "change",
    [
        {"names": {"2": "sales"}}, {"names": {"1": "sales"}}, {"names": {"1": "DEFAULT", "64": "x"}},
        {"names": {"1": "DEFAULT", "2": "Default"}}, {"names": {"1": "DEFAULT", "2": 5}}, {"default": 2},
        {"default": 0}, {"comments": 3}, {"limit": 0}, {"limit": 64}, {"names": None},
        {"elements": {"DEFINITION": 2}}, {"elements": {"DATA": 1}}, {"elements": {"STORAGE": None}}, {"elements": 7},
    ],
)  # fmt: skip
def test_what_is_no_registry(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        unpack({**ONLY_DEFAULT.pack(), **change})
