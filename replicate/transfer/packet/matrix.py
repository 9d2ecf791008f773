"""The epoch matrix: a row for each replica that is known, a column for each origin.

Guarantees: the own row is what the journal says, to the last durable transaction; the others are what was heard of
them, on a line or by packets, and what was exported since, which is marked as an estimate. A supplier has a row of each
other one, also of those that it hears by way of others.
Leaves to others: how it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

import replicate as package
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from replicate.model.vector import Position
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import ExportRun
from replicate.transfer.packet.format import OriginName

NANOSECONDS: Final = 1e9
OWN: Final = "own"
HEARD: Final = "heard"
ESTIMATED: Final = "estimated"
UNKNOWN: Final = "unknown"


class MatrixRow(Struct, frozen=True):
    """`epochs`: of each origin of the matrix. `age_s`: since it was heard of, also where a later estimate is shown;
    None: never. `is_late`: it gets packets, and has confirmed nothing for too long."""

    name: str
    kind: str
    seqno: int
    epochs: tuple[int, ...]
    age_s: float | None
    is_late: bool = False


class EpochMatrix(Struct, frozen=True):
    """`origins`: the columns."""

    origins: tuple[str, ...]
    rows: tuple[MatrixRow, ...]

    @property
    def table(self) -> list[tuple[object, ...]]:
        """As people see it, its head first; an estimate is marked by ~."""
        made: list[tuple[object, ...]] = [("replica", "", *self.origins, "transaction", "heard")]
        for one in self.rows:
            mark = "~" if one.kind == "estimated" else ""
            age = "now" if one.kind == "own" else f"{one.age_s or 0:.0f} s ago"
            if one.age_s is None:  # a supplier's own transactions say what it has
                age = "by its writes" if one.kind == "heard" else "never"
            made.append((one.name, one.kind, *(f"{mark}{epoch}" for epoch in one.epochs), f"{mark}{one.seqno}", age))
        return made


def matrix_of(instance: Instance, now_ns: int, *, by_origin: bool = False) -> EpochMatrix:
    """As it is now. NotFoundError (not seeded), DamagedError for epochs that cannot be read."""
    with ExportRun(instance, release=package.__version__, now_ns=lambda: now_ns, is_look=True) as run:
        known, own = run.suppliers().rows() if instance.is_supplier else run.epochs(), run.end()
        names = {
            one.origin.key: OriginName(one.origin.key, one.name, one.incarnation)
            for one in run.catalogue_at(run.last_seqno).histories
        }
    by_packets = {peer.name: peer.by_packets for peer in instance.peers}
    return lay_out(
        instance.name, own, known, {**known.origins, **names}, by_packets, now_ns,
        instance.config.packets.confirm_within_s, by_origin,
    )  # fmt: skip


def lay_out(
    name: str,
    own: Position,
    known: Epochs,
    origins: Mapping[int, OriginName],
    peers: Mapping[str, bool],
    now_ns: int,
    confirm_within_s: float,
    by_origin: bool = False,
) -> EpochMatrix:
    """The matrix. `peers`: the registered ones, and whether they get packets. Pure."""
    columns: dict[str, list[int]] = {}
    for one in sorted(origins.values(), key=lambda one: (one.instance, one.incarnation)):
        columns.setdefault(f"{one.instance}/{one.incarnation}" if by_origin else one.instance, []).append(one.key)

    def epochs(position: Position) -> tuple[int, ...]:
        return tuple(sum(position.vector.last(key) for key in keys) for keys in columns.values())

    rows = [MatrixRow(name, OWN, own.last_seqno, epochs(own), 0.0)]
    for other in dict.fromkeys((*peers, *known.replicas)):
        replica = known.of(other)
        row = replica.known or EpochRow(Position(), 0)
        heard_ns = replica.heard.wall_ns if replica.heard else 0
        kind = ESTIMATED if replica.estimated else HEARD if replica.heard else UNKNOWN
        age_s = max(0.0, (now_ns - heard_ns) / NANOSECONDS) if heard_ns else None
        since_s = (now_ns - known.unconfirmed_since(other, now_ns)) / NANOSECONDS
        late = peers.get(other, False) and 0 < confirm_within_s < since_s
        rows.append(MatrixRow(other, kind, row.seqno, epochs(row.position), age_s, late))
    return EpochMatrix(tuple(columns), tuple(rows))


def set_estimate(instance: Instance, name: str, seqno: int, now_ns: int, *, dry_run: bool = False) -> int:
    """Have the next export to the peer begin after that transaction; after which it would have begun. UsageError
    beyond what is here, or below what was heard. `dry_run`: change nothing."""
    with ExportRun(instance, release=package.__version__, now_ns=lambda: now_ns, is_look=True) as run:
        if seqno > run.last_seqno:
            raise UsageError(
                f"the journal here ends with transaction {run.last_seqno}; {seqno} is beyond that",
                where=str(instance.path),
                do=f"Say {run.last_seqno} at most",
            )
        row = EpochRow(run.position_at(seqno), now_ns)
        live, known = run.epochs().of(name), run.suppliers().rows() if instance.is_supplier else run.epochs()
        before = known.of(name).known

        def changed(epochs: Epochs) -> Epochs:
            heard = replace(epochs, replicas={**epochs.replicas, name: live}) if live.known else epochs
            return heard.estimate(name, row)

        if dry_run:
            changed(read_epochs(instance.consumers_directory))
        else:
            change_epochs(instance.consumers_directory, changed)
        return 0 if before is None else before.seqno
