"""What `status` says of peers that get packets, and of packets that wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.instance.consumers import Consumer, write_consumer
from replicate.model.findings import Finding
from replicate.status.packets import look_at_packets
from replicate.status.report import PacketsReport
from replicate.transfer.packet.epochs import EpochRow, Epochs, LackingPacket
from replicate.transfer.packet.epochs_file import NAME, change_epochs
from tests.harness.packets import position, summary
from tests.harness.pair import Pair

DAY_NS = 86_400 * 10**9


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.primary.register_peer("west", "", 0, replace_address=True)
    made.primary.reload()
    return made


def looked(pair: Pair, *, last: int = 30, now_ns: int = 2 * DAY_NS) -> tuple[tuple[PacketsReport, ...], list[Finding]]:
    problems: list[Finding] = []
    return look_at_packets(pair.primary, last, now_ns, problems), problems


def test_a_peer_on_a_line_is_none(pair: Pair) -> None:
    pair.primary.register_peer("west", "127.0.0.1", 7430, replace_address=True)
    pair.primary.reload()
    assert looked(pair) == ((), [])


def test_exported_and_confirmed(pair: Pair) -> None:
    def changed(known: Epochs) -> Epochs:
        return known.heard("west", EpochRow(position(10), 1)).exported(summary(10, 25, wall_ns=DAY_NS), "f", 1)

    change_epochs(pair.primary.consumers_directory, changed)
    assert looked(pair) == ((PacketsReport("west", 25, 10, 5, 86_400.0),), [])
    (report,), problems = looked(pair, now_ns=9 * DAY_NS)
    assert report.unconfirmed_s == 8 * 86_400
    assert [(one.code, one.subject) for one in problems] == [("PACKET_UNCONFIRMED", "west")]
    assert "confirmed transaction 10" in problems[0].text
    write_consumer(pair.primary.consumers_directory, Consumer("west", 25, "ab", DAY_NS))
    assert looked(pair, now_ns=9 * DAY_NS) == ((PacketsReport("west", 25, 25, 5, None),), [])


def test_one_that_was_dropped(pair: Pair) -> None:
    write_consumer(pair.primary.consumers_directory, Consumer("west", 3, needs_seed=True))
    (report,), problems = looked(pair)
    assert report.needs_seed
    assert [one.code for one in problems] == ["PEER_DROPPED"]
    assert "seed --to-file FILE --for west" in problems[0].do


def test_packets_that_wait_until_a_line_has_brought_what_they_bring(pair: Pair) -> None:
    waiting = tuple((f"packet {number} of north", 40 + number) for number in range(5))
    change_epochs(
        pair.primary.consumers_directory, lambda known: Epochs(known.replicas, waiting=waiting)
    )  # fmt: skip
    _, (one,) = looked(pair)
    assert one.code == "PACKET_WAITS"
    assert one.text.startswith(
        "5 packets cannot be applied yet: packet 0 of north; packet 1 of north; packet 2 of north"
    )
    assert one.text.endswith("and 2 more")
    _, (one,) = looked(pair, last=43)
    assert one.text == "1 packet cannot be applied yet: packet 4 of north"
    assert looked(pair, last=44)[1] == []


def test_a_gap_until_a_line_has_closed_it(pair: Pair) -> None:
    """Then the packets still wait for an import, and nothing is lacking."""
    lacking = LackingPacket("packet 2 of north needs 21 to 30", "there: packet recover", 30)
    change_epochs(
        pair.primary.consumers_directory,
        lambda known: Epochs(known.replicas, waiting=(("packet 2 of north", 40),), lacking=lacking),
    )
    _, problems = looked(pair, last=29)
    assert [one.code for one in problems] == ["PACKET_WAITS", "PACKET_GAP"]
    assert (problems[1].text, problems[1].do) == (lacking.what, lacking.do)
    assert [one.code for one in looked(pair, last=30)[1]] == ["PACKET_WAITS"]
    assert looked(pair, last=40)[1] == []


def test_what_cannot_be_read_is_told(pair: Pair) -> None:
    (pair.primary.consumers_directory / NAME).write_text("?")
    reports, problems = looked(pair)
    assert (reports, [one.code for one in problems]) == ((), ["CONSUMER_UNREADABLE"])
