"""daemon/statistics_lines.py: when a line of statistics is written, and what orders do to it, by a clock that jumps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.orders import StatisticsOrder, read_statistics_order
from replicate.daemon.statistics import Statistics
from replicate.daemon.statistics_lines import Reporting, configured_period_s
from replicate.errors import UsageError
from replicate.settings.table import UpdateConfig
from tests.harness.servers import ListLog

ON, OFF = StatisticsOrder(True).text, StatisticsOrder(False).text


class Toy:
    """A daemon that only counts."""

    def __init__(self, settings: UpdateConfig) -> None:
        self.log = ListLog()
        self.context = DaemonContext("update", Path("/there"), log=cast(Any, self.log), state="serving")
        self.statistics = Statistics(
            configured_period_s(settings), trio.current_time(), each=settings.statistics_transactions
        )
        self.reporting = Reporting(
            self.context, self.statistics, settings, seqno=lambda: 7, measure=lambda: {"lag_at_least_s": 1.23456}
        )

    @property
    def counts(self) -> list[int]:
        return [line["transactions"] for line in self.log.events("statistics") if "transactions" in line]


def played(settings: UpdateConfig, *steps: object) -> Toy:
    """Seconds to sleep, transactions to count (as ("count", N)), and orders, one after another."""

    async def play() -> Toy:
        toy = Toy(settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(toy.reporting.run)
            for step in steps:
                if isinstance(step, str):
                    toy.reporting.obey(step)
                elif isinstance(step, tuple):
                    toy.statistics.batch(step[1], 0)
                else:
                    await trio.sleep(cast(float, step))
            nursery.cancel_scope.cancel()
        return toy

    return trio.run(play, clock=MockClock(autojump_threshold=0))


def test_a_line_a_period_with_the_figures_of_the_daemon() -> None:
    toy = played(UpdateConfig(statistics_period_s=10.0), ("count", 3), 10.5, ("count", 4), 10.0)
    assert toy.counts == [3, 4]
    line = toy.log.events("statistics")[0]
    assert (line["current_seqno"], line["period_s"], line["lag_at_least_s"]) == (7, 10.0, 1.235)
    assert toy.context.facts["statistics_period_s"] == 10.0


def test_off_closes_the_period_and_on_begins_one() -> None:
    toy = played(UpdateConfig(), 1.0, ("count", 3), OFF, 5000.0, ("count", 4), ON, 299.0, OFF, 1.0)
    # What was counted between off and on stands in the line that ends the first period after it.
    assert toy.counts == [3, 4]
    assert [line["period_s"] for line in toy.log.events("statistics") if "transactions" in line] == [1.0, 5299.0]
    assert toy.context.facts["statistics_period_s"] is None
    assert len(toy.log.events("ordered to log")) == 3


def test_on_with_a_period_holds_until_the_end_and_the_settings_begin_it() -> None:
    toy = played(UpdateConfig(statistics=False), 1000.0, StatisticsOrder(True, 2.0).text, 7.0)
    assert toy.counts == [0, 0, 0]
    assert played(UpdateConfig(statistics=False), 1000.0).counts == []
    assert played(UpdateConfig(statistics=False, statistics_period_s=3.0), 1.0, ON, 7.0).counts == [0, 0]


def test_so_many_transactions_are_a_line_too_one_a_second_at_most() -> None:
    each = UpdateConfig(statistics_transactions=100)
    toy = played(each, ("count", 99), 5.0, ("count", 1), 1.5, *([("count", 1000), 0.1] * 20))
    assert toy.counts[0] == 100
    assert 2 <= len(toy.counts) <= 4
    assert played(each, 1.0, OFF, ("count", 1000), 50.0).counts == [0]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([OFF, ON, StatisticsOrder(True, 0.5).text, ""])), max_size=12
    )
)
def test_whatever_is_ordered_nothing_counted_is_lost(turns: list[tuple[int, str]]) -> None:
    steps: list[object] = []
    for number, order in turns:
        steps += [("count", number), 0.7, *([order] if order else [])]
    toy = played(UpdateConfig(statistics_period_s=1.0, statistics_transactions=20), *steps, ON, OFF)
    assert sum(toy.counts) == sum(number for number, _ in turns) == toy.statistics.total("transactions")


@given(st.booleans(), st.none() | st.floats(0.1, 86400).map(lambda number: float(f"{number:g}")))
def test_an_order_is_read_as_it_was_given(is_on: bool, period_s: float | None) -> None:
    wanted = StatisticsOrder(is_on, period_s if is_on else None)
    assert read_statistics_order(wanted.text) == wanted


def test_other_orders_are_none_of_ours_and_what_makes_no_sense_is_refused() -> None:
    assert read_statistics_order("follow") is None
    for order in ("statistics", "statistics up", "statistics off 3", "statistics on 0.01", "statistics on 1e9",
                  "statistics on nan", "statistics on x", "statistics on 3 4",
                  f"statistics on {math.inf}"):  # fmt: skip
        with pytest.raises(UsageError, match="no order for statistics"):
            read_statistics_order(order)
