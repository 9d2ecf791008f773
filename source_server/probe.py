"""The way to a peer that is primary, tried as far as a stream would come: its Receiver Server stands by, and refuses.

Guarantees: address, certificates or key, allow-lists, network and names are those that the stream will meet when the
peer is secondary; nothing is changed on either side.
Leaves to others: why it is tried (handover.py), and what follows.
"""

from __future__ import annotations

import time

import trio

from replicate.daemon.link_driver import Drive
from replicate.daemon.own_introduction import introduction
from replicate.errors import PeerRefusedError
from replicate.instance.file import PeerEntry
from replicate.instance.instance import Instance
from replicate.security.authenticate import Authenticator
from replicate.settings.load import Config
from replicate.wire.connection import LinkSettings
from replicate.wire.event import Closed, Connected, Event
from replicate.wire.introduction import reason_of
from replicate.wire.message import RefuseCode
from source_server.link import SourceLink
from source_server.unreachable import unreachable


async def probe(instance: Instance, peer: PeerEntry, config: Config, authenticator: Authenticator) -> dict[str, object]:
    """Who answers there. Raises what keeps a stream away: PeerUnreachableError, the refusal of either side; and
    PeerRefusedError of a peer that is not primary."""
    settings, where = config.source, f"{peer.host}:{peer.port}"
    limit_s = settings.connect_timeout_s
    hello_by = trio.current_time() + limit_s
    try:
        with trio.fail_at(hello_by):
            stream = await trio.open_tcp_stream(peer.host, peer.port)
    except (OSError, trio.TooSlowError) as error:
        raise unreachable(error, peer=peer.name, host=peer.host, where=where, timeout_s=limit_s) from error
    let_in = await authenticator.receiver(stream, peer, deadline=hello_by)
    link_settings = LinkSettings(
        heartbeat_period_s=settings.heartbeat_period_s,
        dead_after_s=settings.dead_after_s,
        hello_timeout_s=max(0.001, hello_by - trio.current_time()),
        expected_peer=peer.name,
        proven=let_in.names,
    )
    link = SourceLink(
        link_settings, introduction(instance, settings.heartbeat_period_s), trio.current_time(), time.time_ns()
    )

    def heard(event: Event) -> None:
        if isinstance(event, Connected):
            drive.take(link.bye("the way was tried"))

    drive = Drive(link, let_in.stream, heard)
    closed: Closed = let_in.judged(await drive.run())
    if closed.error is None:
        raise PeerRefusedError(f"{peer.name} is secondary, not primary", where=where)
    if reason_of(closed.error) != RefuseCode.WRONG_ROLE:
        raise closed.error
    return {"peer": peer.name, "address": where}
