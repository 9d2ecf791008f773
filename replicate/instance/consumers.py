"""What each registered consumer of our journal has durably applied: one small file each, below INSTANCE/consumers.

A seed that is on its way to a consumer is a *hold*: a file of its own beside the position, because the Source Server
goes on to move the position of a consumer that still lives. What was exported to one so long ago that it is not kept
any more, confirmed or not, is *aged*, in a file of its own, too.

Guarantees: pruning asks `needed_seqno` and never goes beyond it; a registered consumer that has applied nothing
counts as zero; a file is replaced whole, so a reader sees an old position or a new one; an old one only keeps more
journal, and a process that writes what it has made of what it read holds `consumer_positions.positions_locked`.
Leaves to others: who sends to the consumer, and what a journal is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from replicate.errors import DamagedError, FormatUnknownError
from replicate.instance.file import check_name
from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
"""Of both files; one that says nothing has it too."""


class Consumer(Struct, frozen=True):
    """`acknowledged_seqno`: every transaction up to it is durable on the consumer. `uuid`: hex of its instance, ""
    when never met."""

    name: str
    acknowledged_seqno: int = 0
    uuid: str = ""
    acknowledged_wall_ns: int = 0
    needs_seed: bool = False


def _path(directory: Path, name: str) -> Path:
    return directory / f"{check_name(name, 'peer')}.json"


def _packed(facts: dict[str, Any]) -> bytes:
    return (json.dumps({"format": FORMAT, **facts}) + "\n").encode()


def _unpacked(raw: bytes, path: Path) -> dict[str, Any]:
    """The facts of a file. FormatUnknownError; ValueError and its kin when it makes no sense."""
    facts = json.loads(raw)
    if not isinstance(facts, dict):
        raise TypeError("not an object")
    if facts.get("format", FORMAT) != FORMAT:
        raise FormatUnknownError(
            f"the file has format {facts['format']!r}, this release knows {FORMAT}",
            where=str(path),
            do="Use the release that wrote it, or a newer one",
        )
    return facts


def write_consumer(directory: Path, consumer: Consumer) -> None:
    """Store a consumer's position durably. Raises JournalIOError; the old position stands then."""
    replace_file(_path(directory, consumer.name), _packed(to_builtins(consumer, builtin_types=(bytes,))))


def read_consumer(directory: Path, name: str) -> Consumer | None:
    """The stored position, None when there is none. DamagedError when the file makes no sense, FormatUnknownError."""
    path = _path(directory, name)
    try:
        raw = read_private(path)
    except FileNotFoundError:
        return None
    try:
        facts = _unpacked(raw, path)
        return Consumer(
            name=check_name(facts["name"], "peer"),
            acknowledged_seqno=max(0, int(facts["acknowledged_seqno"])),
            uuid=str(facts["uuid"]),
            acknowledged_wall_ns=int(facts["acknowledged_wall_ns"]),
            needs_seed=bool(facts["needs_seed"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(
            f"the position of consumer {name} is not readable",
            where=str(path),
            do="Remove the file and register the peer again: it then counts as having applied nothing",
        ) from error


def remove_consumer(directory: Path, name: str) -> None:
    """Forget a consumer: nothing is kept for it any more."""
    _path(directory, name).unlink(missing_ok=True)
    _hold_path(directory, name).unlink(missing_ok=True)
    _aged_path(directory, name).unlink(missing_ok=True)


def _hold_path(directory: Path, name: str) -> Path:
    return directory / f"{check_name(name, 'peer')}.hold"


def _aged_path(directory: Path, name: str) -> Path:
    return directory / f"{check_name(name, 'peer')}.aged"


def write_aged(directory: Path, name: str, seqno: int | None) -> None:
    """Nothing up to `seqno` is kept for the consumer any more. None: what it has not confirmed is kept again."""
    if seqno is None:
        _aged_path(directory, name).unlink(missing_ok=True)
    else:
        replace_file(_aged_path(directory, name), _packed({"seqno": seqno}))


def read_aged(directory: Path, name: str) -> int:
    """Up to where nothing is kept for the consumer any more; 0 when all is. DamagedError, FormatUnknownError."""
    found = _read_number(
        _aged_path(directory, name),
        f"what is not kept any more for consumer {name}",
        do="Remove the file: what the consumer has not confirmed is kept then",
    )
    return found or 0


def _read_number(path: Path, what: str, *, do: str) -> int | None:
    try:
        return max(0, int(_unpacked(read_private(path), path)["seqno"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{what} is not readable", where=str(path), do=do) from error


def write_hold(directory: Path, name: str, seqno: int | None) -> None:
    """A seed of the consumer stands at `seqno`: keep all that comes after it. None: there is no such seed any more."""
    if seqno is None:
        _hold_path(directory, name).unlink(missing_ok=True)
    else:
        replace_file(_hold_path(directory, name), _packed({"seqno": seqno}))


def read_hold(directory: Path, name: str) -> int | None:
    """Where the seed stands that is on its way to the consumer; None when there is none. DamagedError,
    FormatUnknownError."""
    return _read_number(
        _hold_path(directory, name),
        f"the place of the seed for consumer {name}",
        do="Remove the file, and seed the consumer again if it waits for that seed",
    )


def told_seqno(directory: Path, consumer: Consumer) -> int:
    """What the consumer has by its own word. Of one that has never given it, the position may be that of a seed which
    is on its way: that is none. DamagedError, FormatUnknownError."""
    if not consumer.acknowledged_wall_ns and read_hold(directory, consumer.name) is not None:
        return 0
    return consumer.acknowledged_seqno


def needed_seqno(directory: Path, consumer: Consumer) -> int | None:
    """Nothing above this may be pruned for the consumer's sake; None when nothing is kept for it."""
    held = read_hold(directory, consumer.name)
    if consumer.needs_seed:
        return held
    needed = consumer.acknowledged_seqno if held is None else min(held, consumer.acknowledged_seqno)
    return max(needed, read_aged(directory, consumer.name))
