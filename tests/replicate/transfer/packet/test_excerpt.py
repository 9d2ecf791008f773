"""What a packet is an excerpt of, by who may have what and who has it; and who may take one. How it is applied:
tests/update_process/replay/test_excerpts.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.errors import PeerRefusedError, UsageError
from replicate.filters.whose_words import Content, note_content
from replicate.instance.instance import Instance
from replicate.journal.header import FLAG_PARTIAL, SegmentHeader
from replicate.journal.segment import create_segment
from replicate.limits import PARTITION_NONE
from replicate.model.partitions import ONLY_DEFAULT
from replicate.model.subscription import Subscription
from replicate.model.transaction import Catalogue
from replicate.transfer.packet.excerpt import content_of, excerpt_for, judge_excerpt, selection_for
from replicate.transfer.packet.format import Excerpt
from tests.harness.packets import SENDER, summary


def instance(path: Path, *bounds: tuple[int, ...] | None, choice: Subscription | None = None) -> Instance:
    """With peers p0, p1 … that may have that much, and what is here."""
    role, network = ("primary", None) if choice is None else ("secondary", bytes(16))
    made = Instance.create(path, role=role, name="east", network=network)
    for number, bound in enumerate(bounds):
        made.register_peer(f"p{number}", "", 0, partitions=bound)
    if choice is not None:
        made.change_subscription(lambda _now: choice)
    made.reload()
    return made


CASES: list[tuple[tuple[int, ...] | None, Subscription | None, Excerpt | None]] = [
    (None, None, None),
    ((2, 3), None, Excerpt((2, 3))),
    (None, Subscription((2, 5), (2, 5)), Excerpt((2, 5))),
    ((2, 3), Subscription((2, 5), (2, 5)), Excerpt((2,))),
    (None, Subscription((2, 5), (2,), {5: 4}), Excerpt((2,))),  # being loaded
    (None, Subscription((2, 5), (2, 5), {5: 10}), Excerpt((2, 5))),
    (None, Subscription((2, 5), (2, 5), {5: 11}), Excerpt((2,))),  # of which the journal lacks some from there on
    (None, Subscription((2,), (2,), {}, (5,)), Excerpt((2,))),  # as it was
]


@pytest.mark.parametrize(("bound", "choice", "expected"), CASES)
def test_what_goes(
    tmp_path: Path, bound: tuple[int, ...] | None, choice: Subscription | None, expected: Excerpt | None
) -> None:
    made = instance(tmp_path / "east", bound, choice=choice)
    assert excerpt_for(made, ["p0"], 10) == expected
    selection = selection_for(made, expected, {})
    if expected is None:
        assert selection is None
    else:
        assert selection is not None
        wanted = [one for one in (1, 2, 3, 5, PARTITION_NONE) if selection.wants(one)]
        assert wanted == [one for one in (1, 2, 3, 5) if one in expected.partitions]


def test_what_is_told_in_a_filters_words_says_so(tmp_path: Path) -> None:
    made = instance(tmp_path / "east", None, choice=Subscription())
    note_content(made.run_directory, None, Content("ab", "hub", "mask"))
    assert excerpt_for(made, ["p0"], 1) == Excerpt((), "mask")
    assert selection_for(made, Excerpt((), "mask"), {}) is None


def test_what_came_through_a_filter_that_is_forgotten_does_not_go(tmp_path: Path) -> None:
    made = instance(tmp_path / "east", None, choice=Subscription())
    here = header(made, 5), header(made, 11, FLAG_PARTIAL)
    for one in here:
        create_segment(made.journal_directory, one, Catalogue({}), grow_bytes=4096).close()
    with pytest.raises(UsageError, match="the journal from transaction 5 on is that of a secondary that gets") as said:
        excerpt_for(made, ["p0"], 5)
    assert "Have east seeded again" in said.value.do
    note_content(made.run_directory, None, Content("ab", "hub", "mask"))
    assert excerpt_for(made, ["p0"], 5) == Excerpt((), "mask")


def header(made: Instance, first_seqno: int, flags: int = 0) -> SegmentHeader:
    return SegmentHeader(made.content.network, made.content.uuid, 1, first_seqno, 0, flags=flags)


def test_what_does_not_go_is_said(tmp_path: Path) -> None:
    made = instance(tmp_path / "east", (3,), (2,), choice=Subscription((2,), (2,)))
    with pytest.raises(UsageError, match="p0, p1 may not have the same partitions") as caught:
        excerpt_for(made, ["p0", "p1"], 1)
    assert caught.value.do == "Export to each of them"
    with pytest.raises(UsageError, match="p0 may have partition 3, and east has the rows of 2 only") as caught:
        excerpt_for(made, ["p0"], 1)
    assert "--partitions" in caught.value.do


TAKES: list[tuple[Subscription, Excerpt | None, str]] = [
    (Subscription(), None, ""),
    (Subscription((2,), (2,)), None, ""),
    (Subscription((2,), (2,)), Excerpt((2,)), ""),
    (Subscription((2,), (2,)), Excerpt((2, 3)), ""),
    (Subscription((2, 3), (2, 3)), Excerpt((2,)), "has partition 2 only, and east lacks 3"),
    (Subscription((2, 3), (2,), {3: 0}), Excerpt((2,)), "east lacks 3"),  # it is asked for, to be loaded
    (Subscription((2, 3), (2,)), Excerpt((2,)), ""),  # wanted, and not asked for yet
    (Subscription(), Excerpt((1, 2, 3)), "and east has all"),
    (Subscription(), Excerpt((), "mask"), ""),
]


@pytest.mark.parametrize(("choice", "excerpt", "refused"), TAKES)
def test_who_takes_one(tmp_path: Path, choice: Subscription, excerpt: Excerpt | None, refused: str) -> None:
    made = instance(tmp_path / "east", choice=choice)
    assert made.content.partitions == ONLY_DEFAULT
    packet = replace(summary(1, 2, targets=("east",)), excerpt=excerpt)
    if not refused:
        judge_excerpt(made, packet, "here")
        return
    with pytest.raises(PeerRefusedError, match=refused) as caught:
        judge_excerpt(made, packet, "here")
    assert caught.value.where == "here"
    assert "export to east" in caught.value.do


def test_in_whose_words_it_is_taken(tmp_path: Path) -> None:
    made = instance(tmp_path / "east", choice=Subscription())
    plain, masked = summary(1, 2), replace(summary(1, 2), excerpt=Excerpt((), "mask"))
    assert (content_of(plain), content_of(masked)) == (
        Content(SENDER.hex(), "east", ""),
        Content(SENDER.hex(), "east", "mask"),
    )
    note_content(made.run_directory, None, Content("ab", "hub", "mask"))
    judge_excerpt(made, masked, "here")
    with pytest.raises(PeerRefusedError, match="came from hub through mask; east sends it through no filter"):
        judge_excerpt(made, plain, "here")
    note_content(made.run_directory, Content("ab", "hub", "mask"), content_of(masked))
    judge_excerpt(made, plain, "here")  # the same sender may change its filter: its operator has done that


def test_one_that_has_some_rows_of_a_table_takes_none(tmp_path: Path) -> None:
    rows = {("main", "account"): "balance > 5"}
    made = instance(tmp_path / "east", None, choice=Subscription((2,), (2,), rows=rows, held_rows=rows))
    with pytest.raises(
        UsageError, match=r"account where balance > 5, no other rows, and a packet brings all rows"
    ) as caught:
        judge_excerpt(made, replace(summary(1, 2, targets=("east",)), excerpt=Excerpt((2, 3))), "here")
    assert "subscription filter main.account --none" in caught.value.do
