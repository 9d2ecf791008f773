"""Packets between instances of a test: summaries that were never a file, exports and imports in one line, and suppliers
that no line connects."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from hypothesis import strategies as st

from replicate.instance.instance import Instance
from replicate.journal.walk import walk
from replicate.limits import PARTITION_STREAM
from replicate.model.vector import Position, SynchronizationVector
from replicate.pool.receive_pool import RecordKind
from replicate.transfer.packet.export import PACKET_BYTES_MIN, Exported, ExportRun, signer_of
from replicate.transfer.packet.format import OriginName, PacketSummary
from replicate.transfer.packet.judge_packets import look
from tests.harness.suppliers import Suppliers
from update_process.packet_feed import PacketFeed
from update_process.replay.packets import import_packets
from update_process.replay.run import silent
from update_process.replay.unpacking import Imported, unpack

NETWORK, SENDER = bytes(range(16)), bytes(range(16, 32))
ORIGIN = 77
_clock = itertools.count(time.time_ns())


def now_ns() -> int:
    """A clock that never stands still: what was said later is newer."""
    return next(_clock)


def position(seqno: int, origin: int = ORIGIN) -> Position:
    """A place in a journal that one origin has written."""
    if not seqno:
        return Position()
    return Position(seqno, SynchronizationVector({(origin, PARTITION_STREAM): seqno}), {origin: (seqno, seqno * 7)})


def summary(
    base: int, end: int, *, inside: int = 0, end_inside: int = 0, number: int = 1, before: int = 0,
    sender: bytes = SENDER, targets: tuple[str, ...] = ("west",), own: int | None = None, wall_ns: int = 5,
) -> PacketSummary:  # fmt: skip
    """What a packet would say of itself."""
    return PacketSummary(
        bytes(16), NETWORK, sender, "east", targets, number, before, position(base), inside, position(end), end_inside,
        position(end if own is None else own), (OriginName(ORIGIN, "east", 1),), wall_ns, "1.0", bytes(32),
    )  # fmt: skip


SUMMARIES = st.builds(
    summary,
    st.integers(0, 9),
    st.integers(10, 2**40),
    inside=st.integers(0, 99),
    end_inside=st.integers(0, 99),
    number=st.integers(2, 9),
    before=st.integers(0, 1),
    targets=st.lists(st.sampled_from(["west", "a.b-c_1", "off"]), min_size=1, max_size=3).map(tuple),
)


def export(
    instance: Instance, directory: Path, *targets: str, max_bytes: int = PACKET_BYTES_MIN, receipt: bool = False
) -> list[Exported]:
    """What these lack, as packets in the directory (made if missing)."""
    directory.mkdir(exist_ok=True)
    with ExportRun(instance, sign=signer_of(instance), release="test", now_ns=now_ns) as run:
        if receipt:
            return [run.receipt(targets, lambda name: directory / name)]
        return list(run.increments(targets, lambda name: directory / name, max_bytes=max_bytes))


def take(instance: Instance, *paths: Path, remove: bool = False, dry_run: bool = False) -> Imported:
    """Import them; the first error of those that it ends with is raised."""
    done = import_packets(instance, paths, now_s=time.time(), remove=remove, dry_run=dry_run)
    for error in done.errors:
        raise error
    return done


# Between suppliers.


def get_packets(made: Suppliers) -> Suppliers:
    """Each gets packets of each, and no line; and has heard of the others what they have."""
    for name in made.names:
        for other in made.names:
            if other != name:
                made.by[name].register_peer(other, "", 0, replace_address=True)
        made.by[name].reload()
    for name in made.names:
        for other in made.names:
            if other != name:
                take(made.by[other], said(made, name, other))
    return made


def sent(made: Suppliers, sender: str, *targets: str, max_bytes: int = PACKET_BYTES_MIN) -> list[Path]:
    """What these lack, as packets."""
    return [one.path for one in export(made.by[sender], made.directory / "stick", *targets, max_bytes=max_bytes)]


def said(made: Suppliers, sender: str, target: str) -> Path:
    """A receipt."""
    (one,) = export(made.by[sender], made.directory / "stick", target, receipt=True)
    return one.path


def bring(made: Suppliers, sender: str, target: str) -> Imported:
    """Export and import."""
    return take(made.by[target], *sent(made, sender, target))


def level_by_packets(made: Suppliers) -> None:
    """Round and round, until nobody lacks anything."""
    for _ in range(len(made.names) + 1):
        for sender in made.names:
            for target in made.names:
                if sender != target:
                    bring(made, sender, target)


def frames_in(made: Suppliers, target: str, path: Path) -> list[bytes]:
    """The transactions that a packet for that one brings, of a large one the frame that commits it."""
    instance, found = made.by[target], list[bytes]()
    stage = made.directory / f"stage-{next(_clock)}"
    stage.mkdir()
    offered = look(instance, [path], time.time()).packets
    segments = [next(directory.iterdir()) for directory, _ in unpack(instance, offered, stage, silent)]
    for record in PacketFeed(segments, instance.content.network).peek():
        if record.kind is RecordKind.LARGE:
            found.append(record.data)
        elif record.kind is RecordKind.FRAMES:
            found += [record.data[at : at + head.frame_bytes] for at, head in walk(record.data)]
    return found


def take_at(instance: Instance, *paths: Instance | str) -> None:
    """For `sites.kill_at`, which takes a path with a dot for one."""
    take(instance, *(Path(str(path)) for path in paths))
