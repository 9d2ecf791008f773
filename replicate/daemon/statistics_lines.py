"""The statistics lines of a daemon, and the order that turns them on and off while it runs.

Guarantees: a line closes its period, and the next one begins there, so no order loses what was counted; an order holds
until the daemon ends, and the settings say how it begins.
Leaves to others: what is counted (statistics.py), the figures beside it (figures.py), who is heard (order_socket.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import fields
from replicate.daemon.last_run import stop_and_start_again
from replicate.daemon.order_socket import CommandSocket, Obey, answer
from replicate.daemon.orders import read_statistics_order, socket_name
from replicate.daemon.statistics import Statistics
from replicate.errors import FormatUnknownError
from replicate.instance.instance import Instance
from replicate.settings.table import ReceiverConfig, SourceConfig, UpdateConfig

EVENT: Final = "statistics"
Settings = SourceConfig | ReceiverConfig | UpdateConfig


def configured_period_s(settings: Settings) -> float | None:
    """Between two lines as the settings have it; None: there are none."""
    return settings.statistics_period_s if settings.statistics else None


class Reporting:
    """The lines of one daemon. `run` it as long as the daemon serves."""

    def __init__(
        self,
        context: DaemonContext,
        statistics: Statistics,
        settings: Settings,
        *,
        seqno: Callable[[], int],
        measure: Callable[[], Mapping[str, Any]],
        log: Any = None,
    ) -> None:
        """`measure` takes a sample, and gives the figures of this moment; `seqno`: how far the daemon is."""
        self._context = context
        self._statistics = statistics
        self._settings = settings
        self._seqno = seqno
        self._measure = measure
        self._log = context.log if log is None else log
        self._ordered = trio.Event()

    async def run(self) -> None:
        """Write each line when it is due."""
        statistics = self._statistics
        self._context.status(statistics_period_s=statistics.period_s)
        while True:
            until = statistics.next_look_s(trio.current_time())
            with trio.move_on_at(until) if until < math.inf else trio.CancelScope():
                await self._ordered.wait()
            self._ordered = trio.Event()
            if statistics.is_due(trio.current_time()):
                self.write()

    def write(self) -> None:
        """A line now."""
        measured = self._measure()
        report = self._statistics.report(trio.current_time(), self._seqno())
        self._log.info(EVENT, **fields(self._context.kind, measured), **report.fields())

    def obey(self, order: str) -> dict[str, object] | None:
        """Carry out an order for the lines; None for another order. UsageError where it makes no sense."""
        wanted = read_statistics_order(order)
        if wanted is None:
            return None
        statistics = self._statistics
        period_s = (wanted.period_s or self._settings.statistics_period_s) if wanted.is_on else None
        if statistics.period_s is not None:
            self.write()  # what was counted until now has its line
        statistics.change_period(period_s, trio.current_time())
        self._context.status(statistics_period_s=period_s)
        self._log.info("ordered to log statistics" if wanted.is_on else "ordered to log no statistics",
                       period_s=period_s)  # fmt: skip
        self._ordered.set()
        return {"statistics": wanted.is_on, "period_s": period_s}


class ReportingOrders:
    """The socket of a daemon that has hardly more orders than those for its lines: `listen` before it says that it
    serves, then `serve` as long as it does, whatever its role."""

    def __init__(self, instance: Instance, context: DaemonContext, more: Obey | None = None) -> None:
        """`more` carries out the daemon's other orders; FormatUnknownError for one that is none of them."""
        self.reporting: Reporting | None = None
        """Whose lines are ordered; none while the daemon stands by."""
        self._instance = instance
        self._context = context
        self._more = more
        self._socket = CommandSocket(instance.run_directory, socket_name(context.name), context.log, "orders")

    async def listen(self) -> None:
        """Be there for commands."""
        await self._socket.listen()

    async def serve(self) -> None:
        """Hear them, after `listen`, until cancelled."""
        await self._socket.serve(self._hear)

    async def _hear(self, stream: trio.SocketStream) -> None:
        await answer(stream, self._obey)

    async def _obey(self, order: str) -> Mapping[str, Any]:
        if read_statistics_order(order) is None:
            if self._more is None:
                raise no_such_order(self._instance, self._context, order)
            return await self._more(order)
        done = None if self.reporting is None else self.reporting.obey(order)
        return {"statistics": False, "period_s": None, "standing_by": True} if done is None else done


def no_such_order(instance: Instance, context: DaemonContext, order: str) -> FormatUnknownError:
    """Of an order of another release."""
    what = {"source": "Source Server", "receiver": "Receiver Server", "update": "Update Process"}[context.kind]
    return FormatUnknownError(
        f"{'an' if what[0] == 'U' else 'a'} {what} of this release knows no such order",
        where=order[:80],
        do=f"Of another release: {stop_and_start_again(instance, context.name)}",
    )
