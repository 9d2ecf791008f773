"""How far a running Source Server is with its peer: asked for at this moment, not read from what it last wrote down.

Guarantees: the numbers are those of the daemon at the moment of the question; a daemon of an earlier release, which
does not know the question, is told by name. Nothing is changed.
Leaves to others: what is waited for (door/closed_door.py), and the daemon's answer (source_server/process.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from replicate.daemon.orders import PROGRESS, give
from replicate.errors import NotFoundError, TryAgainError
from replicate.instance.instance import Instance
from replicate.model.start_command import start_command

_NUMBERS: Final = tuple(f"last_{what}_seqno" for what in ("written", "sent", "received", "applied", "acknowledged"))


class SentProgress(Struct, frozen=True):
    """The last transaction of our journal; of what this run has sent (0: nothing yet); and what the peer has
    received, applied and made durable. `is_connected`: the stream to it stands. `update_state`: what the peer says of
    its Update Process, "" when it has said nothing."""

    last_written_seqno: int
    last_sent_seqno: int
    last_received_seqno: int
    last_applied_seqno: int
    last_acknowledged_seqno: int
    is_connected: bool
    update_state: str
    error: str = ""
    """Why it is not connected, as far as it knows."""


def progress_facts(measured: Mapping[str, Any], error: object) -> dict[str, object]:
    """A Source Server's answer, from its figures and its last error."""
    return {name: measured[name] for name in (*_NUMBERS, "connected", "peer_update_state")} | {"error": error or ""}


def read_progress(facts: Mapping[str, Any]) -> SentProgress:
    """The answer, as the asker reads it. TryAgainError when it makes no sense."""
    try:
        written, sent, received, applied, acknowledged = (int(facts[name]) for name in _NUMBERS)
        is_connected, state, error = bool(facts["connected"]), str(facts["peer_update_state"]), str(facts["error"])
    except (KeyError, TypeError, ValueError) as problem:
        raise TryAgainError(
            f"what a Source Server tells of its progress makes no sense: {problem!r}",
            do="Stop it and start it, if it is of another release",
        ) from problem
    return SentProgress(written, sent, received, applied, acknowledged, is_connected, state, error)


def progress_of(instance: Instance, daemon: str) -> SentProgress:
    """How far the Source Server of that name is. NotFoundError when it does not run, and what `give` raises."""
    facts = give(instance, daemon, PROGRESS)
    if facts is None:
        raise NotFoundError(
            f"{daemon} does not run: nobody can say what its peer has",
            where=str(instance.path),
            do=f"Start it: {start_command(daemon, of=instance.named)}",
        )
    return read_progress(facts)
