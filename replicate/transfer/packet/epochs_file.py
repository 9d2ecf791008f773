"""The epochs as a file of the instance.

    consumers/_epochs.json    format 1

Guarantees: it is replaced whole, under the lock of the consumers' positions, so no two of us undo each other; without
packets there is none. What does not verify is refused: an estimate that is too high would leave a gap.
Leaves to others: what moves the epochs (epochs.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import xxhash

from replicate.errors import DamagedError, FormatUnknownError, ReplicateError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.instance import Instance
from replicate.model.vector import Position, SynchronizationVector, pack_chains, unpack_chains
from replicate.system.files import read_private, replace_file
from replicate.transfer.packet.epochs import EpochRow, Epochs, LackingPacket, PacketExport, Replica
from replicate.transfer.packet.format import OriginName

FORMAT: Final = 1
NAME: Final = "_epochs.json"
"""No peer can bear such a name."""


def read_epochs(consumers_directory: Path) -> Epochs:
    """What is known; nothing where there is no file. DamagedError, FormatUnknownError, JournalIOError."""
    path = consumers_directory / NAME
    try:
        raw = read_private(path)
    except FileNotFoundError:
        return Epochs()
    try:
        facts = json.loads(raw)
        number = facts["format"]
        if type(number) is int and number > FORMAT:
            raise FormatUnknownError(
                f"the epochs have format {number}, this release knows {FORMAT}",
                where=str(path),
                do="Use the release that wrote them, or a newer one",
            )
        if facts.pop("check") != _digest(facts):
            raise ValueError("the check does not fit the content")
        return Epochs(
            {name: Replica(_row(one["heard"]), _row(one["estimated"])) for name, one in facts["replicas"].items()},
            tuple(_export(one) for one in facts["exports"]),
            int(facts["last_number"]),
            {int(key): OriginName(int(key), *named) for key, named in facts["origins"].items()},
            tuple((str(text), int(last)) for text, last in facts["waiting"]),
            {str(name): int(met) for name, met in facts.get("level", {}).items()},
            _lacking(facts.get("lacking"), facts.get("lacking_needs", ())),
        )
    except FormatUnknownError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ReplicateError) as error:
        raise DamagedError(
            f"the epochs are not readable: {error}",
            where=str(path),
            do="Remove the file; then have each replica send a receipt, and import it, before the next export",
        ) from error


def level_by_packets(instance: Instance) -> set[str]:
    """Of a supplier that was restored, those whose packets have brought all that they had since. Raises as
    `read_epochs`."""
    return read_epochs(instance.consumers_directory).were_level(instance.content.incarnation)


def change_epochs(consumers_directory: Path, change: Callable[[Epochs], Epochs]) -> Epochs:
    """Store what `change` makes of them, durably; it is called alone with them. What reading and `change` raise, and
    JournalIOError: they stand as they were then."""
    with positions_locked(consumers_directory):
        before = read_epochs(consumers_directory)
        after = change(before)
        if after != before:
            replace_file(consumers_directory / NAME, _packed(after))
    return after


def _packed(epochs: Epochs) -> bytes:
    facts: dict[str, Any] = {
        "format": FORMAT,
        "replicas": {
            name: {"heard": _row_facts(one.heard), "estimated": _row_facts(one.estimated)}
            for name, one in epochs.replicas.items()
        },
        "exports": [
            {
                "number": one.number,
                "packet": one.packet.hex(),
                "targets": list(one.targets),
                "base": _row_facts(one.base),
                "last_seqno": one.last_seqno,
                "wall_ns": one.wall_ns,
                "file": one.file,
                "bytes": one.bytes,
            }
            for one in epochs.exports
        ],
        "last_number": epochs.last_number,
        "origins": {str(key): [one.instance, one.incarnation] for key, one in epochs.origins.items()},
        "waiting": [list(one) for one in epochs.waiting],
    }
    if epochs.level:
        facts["level"] = dict(epochs.level)
    if (lacking := epochs.lacking) is not None:
        facts["lacking"] = [lacking.what, lacking.do, lacking.last_seqno]
        if lacking.needs:
            facts["lacking_needs"] = [list(one) for one in lacking.needs]
    return (json.dumps({"check": _digest(facts), **facts}) + "\n").encode()


def _digest(facts: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(facts, sort_keys=True).encode())


def _row_facts(row: EpochRow | None) -> dict[str, Any] | None:
    if row is None:
        return None
    position = row.position
    return {
        "seqno": position.last_seqno,
        "vector": position.vector.pack(),
        "chains": pack_chains(position.chains),
        "wall_ns": row.wall_ns,
    }


def _row(facts: Any) -> EpochRow | None:
    if facts is None:
        return None
    vector, chains = SynchronizationVector.unpack(facts["vector"]), unpack_chains(facts["chains"])
    return EpochRow(Position(int(facts["seqno"]), vector, chains), int(facts["wall_ns"]))


def _lacking(facts: Any, needs: Any) -> LackingPacket | None:
    if facts is None:
        return None
    what, do, last_seqno = facts
    return LackingPacket(str(what), str(do), int(last_seqno), tuple((int(origin), int(last)) for origin, last in needs))


def _export(facts: Any) -> PacketExport:
    base = _row(facts["base"])
    if base is None:
        raise ValueError("an export without a base")
    return PacketExport(
        int(facts["number"]), bytes.fromhex(facts["packet"]), tuple(map(str, facts["targets"])), base,
        int(facts["last_seqno"]), int(facts["wall_ns"]), str(facts["file"]), int(facts["bytes"]),
    )  # fmt: skip
