"""A Receiver Server of an instance that is primary: it listens, and refuses each source by name.

So its service can stay enabled on both hosts, and run through a change of roles. A source that comes is told by whom it
was refused, and what shows that it was taken over from: so an old primary that returns is fenced. A source that is
primary too, and shows that of this instance, has this one fenced.

Guarantees: only a source that has proven to be of this network, and may send to us, hears more than that it is refused,
or is listened to. Leaves to others: receiving (process.py), what is made of another primary (roles/encounters.py).
"""

from __future__ import annotations

import time
from typing import Final

import trio

from receiver_server.flow import Flow
from receiver_server.link import ReceiverLink
from replicate.daemon.admission import Admission, Guest, Standing
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.link_driver import Drive
from replicate.daemon.listening import Callers
from replicate.daemon.own_introduction import introduction
from replicate.daemon.repeated_lines import Repetitions
from replicate.daemon.role_watch import LOOK_S, RoleWatch
from replicate.door.snapshot import door_of
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.model.takeover import Takeover
from replicate.roles.encounters import Encounters
from replicate.roles.succession import Other
from replicate.roles.superseded import own_takeovers
from replicate.security.authenticate import Authenticator
from replicate.settings.load import Address
from replicate.wire.connection import LinkSettings
from replicate.wire.event import Closed, Event
from replicate.wire.introduction import check_proven, reason_of
from replicate.wire.message import RefuseCode

STANDING_BY: Final = "standing by: this instance is primary"


class Standby:
    """The daemon while its instance is primary. `run` it once."""

    def __init__(
        self,
        context: DaemonContext,
        instance: Instance,
        encounters: Encounters,
        authenticator: Authenticator,
        is_tls: bool,
    ) -> None:
        """`is_tls`: whether connections speak TLS."""
        self._encounters = encounters
        self._takeovers: tuple[Takeover, ...] | None = None
        """What we can show; None: not looked up yet."""
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
        context.status(STANDING_BY, listen=str(address), **self._encounters.facts)
        context.ready(STANDING_BY)
        async with trio.open_nursery() as nursery:
            callers = Callers(self._admission, self._refuse, self._closed_unheard)
            nursery.start_soon(trio.serve_listeners, callers.connected, listeners)
            while not context.stop_requested.is_set() and not watch.is_other():
                self._authenticator.warn_of_expiry(time.time())
                context.status(STANDING_BY, listen=str(address), **self._encounters.facts)
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
        me = introduction(self._instance, self._settings.heartbeat_period_s, takeovers=await self._look_up())
        link = ReceiverLink(settings, flow, me, trio.current_time(), time.time_ns())

        def ended(event: Event) -> None:
            if isinstance(event, Closed):
                error = peer.judged(event).error
                reason = event.reason.value if error is None else reason_of(error)
                self._refused(guest.address, where, reason, error)

        closed = await Drive(link, peer.stream, ended).run()
        who = link.heard_of
        if who is None or closed.error is None or reason_of(closed.error) != RefuseCode.WRONG_ROLE:
            return
        try:
            check_proven(who, peer.names)
        except ReplicateError as error:
            self._refused(guest.address, where, reason_of(error), error)
            return
        if who.role == "primary":
            await self._encounters.met(Other(who.name, who.instance, who.incarnation, who.takeovers))
        else:
            self._encounters.gone()

    async def _look_up(self) -> tuple[Takeover, ...]:
        """What we can show another primary: the same as long as we are one."""
        if self._takeovers is None:
            try:
                self._takeovers = await trio.to_thread.run_sync(self._read_takeovers)
            except ReplicateError as error:
                self._context.log.error("our own past was not read", error=str(error), code=error.code)
        return self._takeovers or ()

    def _read_takeovers(self) -> tuple[Takeover, ...]:
        with door_of(self._instance) as door:
            return own_takeovers(door)

    def _closed_unheard(self, host: str, where: str, reason: str) -> None:
        self._refused(host, where, reason)

    def _refused(self, host: str, where: str, reason: str, error: ReplicateError | None = None) -> None:
        told = {} if error is None else {"error": str(error), "code": error.code}
        self._repetitions.line(
            self._context.log.info, trio.current_time(), "connection refused", host, reason, where=where, reason=reason,
            **told,
        )  # fmt: skip
