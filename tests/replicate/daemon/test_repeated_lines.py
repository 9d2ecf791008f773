"""Repeated lines: each reason at once, then one a period with a count; memory is bounded."""

from __future__ import annotations

from typing import Any

from replicate.daemon.repeated_lines import Repetitions


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


def test_one_line_a_reason_then_one_a_period_with_a_count() -> None:
    repetitions, lines = Repetitions(30.0), Lines()
    for tenth in range(700):  # 70 s, ten a second
        repetitions.line(lines, tenth / 10, "closed", "refused", error="x")
    assert lines.lines == [
        ("closed", {"error": "x"}),
        ("closed", {"error": "x", "repeated": 299}),
        ("closed", {"error": "x", "repeated": 299}),
    ]


def test_a_changed_reason_is_told_at_once_also_when_two_take_turns() -> None:
    repetitions, lines = Repetitions(30.0), Lines()
    told = [repetitions.line(lines, n / 10, "closed", n % 2) for n in range(100)]
    assert told == [True, True] + [False] * 98
    assert repetitions.line(lines, 11.0, "made", 0)
    assert len(lines.lines) == 3


def test_after_forget_all_is_told_again_and_counted_again() -> None:
    repetitions, lines = Repetitions(30.0), Lines()
    for now_s in (1.0, 2.0):
        repetitions.line(lines, now_s, "closed")
    repetitions.forget()
    assert repetitions.line(lines, 3.0, "closed")
    assert lines.lines == [("closed", {})] * 2


def test_a_peer_that_invents_reasons_gets_so_many_lines_a_period_and_memory_is_bounded() -> None:
    repetitions, lines = Repetitions(30.0), Lines()
    most = Repetitions.REASONS_MAX
    for number in range(1000):
        repetitions.line(lines, number / 100, "closed", number)
    assert len(lines.lines) == len(repetitions._told) == most
    assert not repetitions.line(lines, 11.0, "closed", 0)
    assert repetitions.line(lines, 30.0, "closed", "new")  # the first one's period is over
    assert lines.lines[-1] == ("closed", {"others": 1000 - most})
    for number in range(1000):
        repetitions.line(lines, 100.0, "closed", number)
    assert len(lines.lines) == 2 * most + 1
    assert len(repetitions._told) == most
