"""A Receiver Server of an instance that is primary: it listens, and refuses each source by name.

So its service can stay enabled on both hosts, and run through a change of roles. A source that comes is told by whom it
was refused, and an old primary that returns learns so that there is another one.

Guarantees: nothing of the instance is opened or changed; only who has proven to be of this network, and may send to us,
hears more than that he is refused. Leaves to others: receiving (process.py).
"""

from __future__ import annotations

import time
from typing import Final

import trio

from receiver_server.flow import Flow
from receiver_server.link import ReceiverLink
from replicate.daemon.admission import Admission, Guest, Standing
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.driver import Drive
from replicate.daemon.listening import Callers
from replicate.daemon.own_introduction import introduction
from replicate.daemon.repeated_lines import Repetitions
from replicate.daemon.role_watch import LOOK_S, RoleWatch
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.security.authenticate import Authenticator
from replicate.settings.load import Address
from replicate.wire.connection import LinkSettings
from replicate.wire.event import Closed, Event
from replicate.wire.introduction import reason_of

STANDING_BY: Final = "standing by: this instance is primary"


class Standby:
    """The daemon while its instance is primary. `run` it once."""

    def __init__(self, context: DaemonContext, instance: Instance, authenticator: Authenticator, is_tls: bool) -> None:
        """`is_tls`: whether connections speak TLS."""
        self._context = context
        self._instance = instance
        self._authenticator = authenticator
        self._is_tls = is_tls
        self._settings = context.config.receiver
        self._admission = Admission(self._settings.connections_max, self._settings.connections_per_address_max)
        self._repetitions = Repetitions()

    async def run(self, listeners: list[trio.SocketListener], address: Address) -> None:
        """Refuse, until the stop is requested, or the instance is secondary."""
        context, watch = self._context, RoleWatch(self._instance)
        context.status(STANDING_BY, listen=str(address))
        context.ready(STANDING_BY)
        async with trio.open_nursery() as nursery:
            callers = Callers(self._admission, self._refuse, self._closed_unheard)
            nursery.start_soon(trio.serve_listeners, callers.connected, listeners)
            while not context.stop_requested.is_set() and not watch.is_other():
                self._authenticator.warn_of_expiry(time.time())
                with trio.move_on_after(LOOK_S):
                    await context.stop_requested.wait()
            nursery.cancel_scope.cancel()
        if context.stop_requested.is_set():
            context.status("stopped")

    async def _refuse(self, stream: trio.SocketStream, guest: Guest, where: str) -> None:
        """The link itself refuses what a primary is sent, once it has heard the hello."""
        hello_by = trio.current_time() + self._settings.hello_timeout_s
        try:
            peer = await self._authenticator.source(
                stream, is_tls=self._is_tls, deadline=hello_by, answers=guest.answered
            )
        except ReplicateError as error:
            self._refused(guest.address, where, reason_of(error), error)
            return
        guest.standing = Standing.PROVEN
        settings = LinkSettings(
            heartbeat_period_s=self._settings.heartbeat_period_s,
            dead_after_s=self._settings.dead_after_s,
            hello_timeout_s=max(0.001, hello_by - trio.current_time()),
            proven=peer.names,
        )
        flow = Flow(self._settings.pool_bytes, self._settings.xoff_percent, self._settings.xon_percent)
        me = introduction(self._instance, self._settings.heartbeat_period_s)
        link = ReceiverLink(settings, flow, me, trio.current_time(), time.time_ns())

        def ended(event: Event) -> None:
            if isinstance(event, Closed):
                error = peer.judged(event).error
                reason = event.reason.value if error is None else reason_of(error)
                self._refused(guest.address, where, reason, error)

        await Drive(link, peer.stream, ended).run()

    def _closed_unheard(self, host: str, where: str, reason: str) -> None:
        self._refused(host, where, reason)

    def _refused(self, host: str, where: str, reason: str, error: ReplicateError | None = None) -> None:
        told = {} if error is None else {"error": str(error), "code": error.code}
        self._repetitions.line(
            self._context.log.info, trio.current_time(), "connection refused", host, reason, where=where, reason=reason,
            **told,
        )  # fmt: skip
