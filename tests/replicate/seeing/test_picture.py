"""seeing/picture.py: one picture of a status and a history, what it leaves out, and how it says that it is bad."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.model.findings import Finding
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import InstancePicture, commands_in, picture_of, unreadable
from replicate.status.comparing import ComparedReport
from replicate.status.report import PartitionReport, PatrolReport, Status, SupplierReport
from tests.harness.logs import SOURCE, UPDATE, line
from tests.replicate.seeing.test_history import PRIMARY, SECONDARY, told, us
from tests.replicate.status.test_collect import PEER, RECEIVING


def made(status: Status, history: SeenHistory | None = None, at_s: float = 100, past_s: float = 100) -> InstancePicture:
    return picture_of(status, history or SeenHistory(0), now_us=us(at_s), past_s=past_s, columns=4)


STOPPED = Finding("DAEMON_STOPPED", "update does not run", "mend it; then replicate -i 'a b' update start --set x=1,y")
PAUSED = Finding("BARRIER_HELD", "a compare holds it", "wait for it")


def test_a_finding_has_its_commands_as_they_are_pasted() -> None:
    picture = made(replace(PRIMARY, findings=(STOPPED, PAUSED)))
    assert [found.commands for found in picture.findings] == [("replicate -i 'a b' update start --set x=1,y",), ()]
    assert picture.is_wrong
    assert picture.mood == "warning"
    assert not made(replace(PRIMARY, findings=(PAUSED,))).is_wrong


@pytest.mark.parametrize(
    ("do", "commands"),
    [
        ("there: replicate -i west status names the reason", ("replicate -i west status",)),
        ("replicate -i a status says why, and how to start it", ("replicate -i a status",)),
        ("replicate -i a seed again: it goes on where it was", ("replicate -i a seed",)),
        ("there: replicate -i w update stop, then replicate -i w seed --restart",
         ("replicate -i w update stop", "replicate -i w seed --restart")),
        ("kill -CONT 7", ("kill -CONT 7",)),
        ("replicate -i /a.b/c.d source start. To go on: replicate -i /a.b/c.d source start",
         ("replicate -i /a.b/c.d source start",)),
        ("replicate -i a archive (best from a timer)", ("replicate -i a archive",)),
        ("wait for it", ()),
    ],
)  # fmt: skip
def test_a_command_ends_where_the_sentence_goes_on(do: str, commands: tuple[str, ...]) -> None:
    assert commands_in(do) == commands


def test_a_daemon_that_was_killed_is_down_from_then_on() -> None:
    history = SeenHistory(0)
    history.line(line(0, SOURCE, "streaming"))
    dead = replace(PRIMARY, peers=(replace(PEER, source=replace(PEER.source, state="dead")),))
    assert made(dead, history).lanes[0].spans == ((us(0), us(100), "not running"),)
    history.status(PRIMARY, us(58))
    history.status(dead, us(60))
    assert made(dead, history).lanes[0].spans == ((us(0), us(60), "streaming"), (us(60), us(100), "not running"))


def test_the_mood_is_the_worst_finding_or_whether_there_is_work() -> None:
    assert made(PRIMARY).mood == "well"
    assert made(replace(PRIMARY, bottleneck="the Update Process")).mood == "busy"
    assert made(replace(PRIMARY, findings=(Finding("DAEMON_DEAD", "x", "y"),))).mood == "error"


def test_curves_stand_in_one_order_with_their_units() -> None:
    history = SeenHistory(0)
    for second in range(3):
        history.status(replace(SECONDARY, peers=(PEER,)), us(98 + second))
    picture = made(replace(SECONDARY, peers=(PEER,)), history)
    assert [(curve.key, curve.label, curve.unit) for curve in picture.curves] == [
        ("lag_s", "lag", "seconds"),
        ("backlog", "backlog", "transactions"),
        ("received_per_s", "received", "per second"),
        ("applied_per_s", "applied", "per second"),
        ("lag_s:west", "lag to west", "seconds"),
        ("backlog:west", "backlog to west", "transactions"),
        ("sent_per_s:west", "sent to west", "per second"),
    ]
    assert [point.value for point in picture.curves[0].points] == [None, None, None, 0.0]
    assert picture.curves[0].now.value == 0.0
    primary = SeenHistory(0)
    primary.line(told(90, last_written_seqno=1))
    primary.line(told(95, last_written_seqno=2))
    assert [curve.key for curve in made(PRIMARY, primary).curves] == [
        "written_per_s", "lag_s:west", "backlog:west", "sent_per_s:west",
    ]  # fmt: skip


def test_a_supplier_has_the_curves_of_both_ways() -> None:
    history = SeenHistory(0)
    supplier = replace(SECONDARY, role="supplier", peers=(PEER,))
    for second in (97, 98, 99):
        history.status(supplier, us(second))
    keys = [curve.key for curve in made(supplier, history).curves]
    assert keys[2:6] == ["received_per_s", "applied_per_s", "written_per_s", "lag_s:west"]


def test_events_and_lanes_are_those_of_the_time_that_is_shown() -> None:
    history = SeenHistory(0)
    history.line(line(0, SOURCE, "daemon started", role="primary"))
    history.line(line(10, SOURCE, "streaming", from_seqno=5))
    history.line(line(60, SOURCE, "XOFF received"))
    history.line(line(70, UPDATE, "daemon started", role="secondary"))
    picture = made(PRIMARY, history, past_s=50)
    assert [(event.what, event.mood) for event in picture.events] == [("paused (XOFF)", "warning"), ("started", "well")]
    assert picture.tally == (("paused (XOFF)", 1),)
    assert [lane.daemon for lane in picture.lanes] == ["source-west", "update"]
    assert picture.lanes[0].spans == ((us(50), us(60), "streaming"), (us(60), us(100), "paused (XOFF)"))


def test_modes_are_told() -> None:
    asleep = replace(PEER, name="away", source=replace(PEER.source, is_passive=True))
    assert made(PRIMARY).mode == "active"
    assert made(replace(PRIMARY, peers=(PEER, asleep))).mode == "passive to away"
    assert made(replace(PRIMARY, peers=(asleep,))).mode == "passive"
    assert made(replace(PRIMARY, peers=())).mode == ""


def test_notes_tell_what_the_street_does_not() -> None:
    status = replace(
        SECONDARY,
        compared=(ComparedReport("east", 5, 60.0, True),),
        patrol=PatrolReport(12, 60.0, 0, "", "main.account"),
        suppliers=(SupplierReport("north", True, 9, 8, 7, True),),
        receiving=replace(RECEIVING, level_in_s=90.0),
        partitions=(PartitionReport("sales", 2, "here"), PartitionReport("stock", 3, "is being loaded")),
    )
    assert made(status).notes == (
        "region main: well, applied 100",
        "partitions: sales here; stock is being loaded",
        f"patrol: {PatrolReport(12, 60.0, 0, '', 'main.account').line}",
        "supplier north: connected, received 8, applied 7",
        "level in 90.0 s",
    )


def test_an_instance_that_cannot_be_read_says_why() -> None:
    picture = unreadable("east", "/srv/east", "NOT_FOUND: gone [/srv/east]", now_us=us(1), past_s=60)
    assert picture.is_wrong
    assert (picture.mood, picture.error, picture.rows) == ("error", "NOT_FOUND: gone [/srv/east]", ())
