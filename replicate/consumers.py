"""What each registered consumer of our journal has durably applied: one small file each, below INSTANCE/consumers.

Guarantees: pruning asks `least_acknowledged` and never goes beyond it; a registered consumer that has applied nothing
counts as zero; a file is replaced whole, so a reader sees an old position or a new one; an old one only keeps more
journal. Refuses to know: who sends to the consumer, and what a journal is.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from replicate.errors import DamagedError
from replicate.instance_file import check_name, replace_file


@dataclass(frozen=True, slots=True)
class Consumer:
    """`acknowledged_seqno`: every transaction up to it is durable on the consumer. `uuid`: hex of its instance, ""
    when never met."""

    name: str
    acknowledged_seqno: int = 0
    uuid: str = ""
    acknowledged_wall_ns: int = 0
    needs_seed: bool = False


def _path(directory: Path, name: str) -> Path:
    return directory / f"{check_name(name, 'peer')}.json"


def write_consumer(directory: Path, consumer: Consumer) -> None:
    """Store a consumer's position durably. Raises JournalIOError; the old position stands then."""
    replace_file(_path(directory, consumer.name), (json.dumps(asdict(consumer)) + "\n").encode())


def read_consumer(directory: Path, name: str) -> Consumer | None:
    """The stored position, None when there is none. DamagedError when the file makes no sense."""
    path = _path(directory, name)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(raw)
        return Consumer(
            name=check_name(facts["name"], "peer"),
            acknowledged_seqno=max(0, int(facts["acknowledged_seqno"])),
            uuid=str(facts["uuid"]),
            acknowledged_wall_ns=int(facts["acknowledged_wall_ns"]),
            needs_seed=bool(facts["needs_seed"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(
            f"the position of consumer {name} is not readable",
            where=str(path),
            do="Remove the file and register the peer again: it then counts as having applied nothing",
        ) from error


def remove_consumer(directory: Path, name: str) -> None:
    """Forget a consumer: nothing is kept for it any more."""
    _path(directory, name).unlink(missing_ok=True)


def least_acknowledged(directory: Path, names: list[str]) -> int | None:
    """The least acknowledged seqno over the registered names; None when nobody is registered."""
    if not names:
        return None
    positions = [
        0 if consumer is None else consumer.acknowledged_seqno
        for consumer in (read_consumer(directory, name) for name in names)
        if consumer is None or not consumer.needs_seed
    ]
    return min(positions, default=None)
