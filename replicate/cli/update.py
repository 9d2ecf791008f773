"""`replicate update start|stop|run|status|reopen-log`: the Update Process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicate.cli import daemons

if TYPE_CHECKING:
    from replicate.daemon.daemon import DaemonContext


async def _serve(context: DaemonContext) -> None:
    from update_process.process import serve

    await serve(context)


update = daemons.noun(
    "update",
    "The Update Process, which applies what was received.",
    _serve,
    drains="apply what was received",
)
