"""When the other site was last heard: what a daemon notes, another process and a later boot read."""

from __future__ import annotations

import time

import pytest

from replicate.daemon.last_heard import BOOT, MONOTONIC, TOLD, WALL, Heard, now, read_facts, utc
from replicate.model.contact import Moment


def test_nobody_was_heard_yet() -> None:
    heard = Heard(5.0)
    assert (heard.last, heard.age_s()) == (None, None)
    assert read_facts(heard.facts()) == (None, None)


def test_times_of_the_loops_clock_are_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1_000_000_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    heard = Heard(10.0)
    heard.at(7.5)
    assert heard.last == Moment(997_500_000_000, 1_699_999_997_500_000_000, now().boot)
    assert heard.age_s() == 2.5
    before = heard.facts()
    heard.at(7.0)  # what comes late changes nothing, so that the status is not written for it
    assert heard.facts() == before
    heard.at(8.0)
    assert heard.age_s() == 2.0


def test_what_a_predecessor_has_heard_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1_000_000_000_000)
    heard = Heard(10.0, 999_000_000_000)
    assert heard.age_s() == 1.0
    heard.at(8.0)
    assert heard.age_s() == 1.0


def test_another_process_reads_what_was_noted() -> None:
    heard = Heard(time.monotonic())
    heard.at(time.monotonic())
    assert heard.last is not None
    assert read_facts(heard.facts()) == (heard.last, None)
    told_ns = heard.last.monotonic_ns - 3_000_000_000
    assert read_facts({**heard.facts(), TOLD: told_ns}) == (
        heard.last, Moment(told_ns, heard.last.wall_ns - 3_000_000_000, heard.last.boot),
    )  # fmt: skip


@pytest.mark.parametrize("name", [MONOTONIC, WALL, BOOT, TOLD])
@pytest.mark.parametrize("value", [None, "7", 1.5, [], {}])
def test_what_is_no_number_says_nothing(name: str, value: object) -> None:
    facts: dict[str, object] = {MONOTONIC: 7, WALL: 8, BOOT: 9, TOLD: 6} | {name: value}
    heard, told = read_facts(facts)
    assert heard == (Moment(7, 8, 9) if name == TOLD else None)
    assert (told is None) == (name in (TOLD, BOOT))


def test_a_time_for_people_is_utc() -> None:
    assert utc(1_700_000_000_999_000_000) == "2023-11-14 22:13:20 UTC"
