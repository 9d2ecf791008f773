"""Judges packets: is this one for us, from one who may send it, and what does its sender say of itself?

Guarantees: nothing of a packet counts before its record checks, its network, its target and, where this instance has a
certificate, its signature and signer are found well. What a peer says of itself is judged by the function that answers
it on a line (wire/resync.py), before anything is kept or pruned for it.
Leaves to others: in which order packets are applied (order.py), and how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from replicate.door.restart_view import view_for
from replicate.door.snapshot import door_of
from replicate.errors import (
    NotAuthenticatedError,
    NotSupportedError,
    ReplicateError,
    WrongInstanceError,
    WrongNetworkError,
)
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import (
    Consumer,
    read_aged,
    read_consumer,
    read_hold,
    write_aged,
    write_consumer,
    write_hold,
)
from replicate.instance.instance import Instance
from replicate.model.transaction import History
from replicate.model.vector import Origin, Position
from replicate.security.sealing import unseal
from replicate.security.signing import names_of, require_signed
from replicate.security.tls_files import TlsFiles
from replicate.settings.peer_authority import judge_receiver, judge_source, parse_allow
from replicate.system.files import replace_file
from replicate.transfer.packet.epochs import EpochRow, Epochs, LackingPacket
from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
from replicate.transfer.packet.export import certificate_of
from replicate.transfer.packet.format import OriginName, PacketSummary
from replicate.transfer.packet.read import PacketReader, packets_in
from replicate.transfer.packet.sealed import Unseal
from replicate.transfer.packet.supplier_rows import joined, vector_of
from replicate.transfer.packet.suppliers import look_at_suppliers
from replicate.wire.message import Restart
from replicate.wire.resync import JournalMissing, RollbackFirst, StartAt, decide


class Offered(Struct, frozen=True):
    """A packet that may be taken. `certificates`: of who has signed it, PEM; b"" where nobody had to."""

    path: Path
    summary: PacketSummary
    size: int
    certificates: bytes = b""


class Inbox(Struct, frozen=True):
    """What was found: packets that may be taken, those that may not with the reason, and how many are for others."""

    packets: tuple[Offered, ...]
    refused: tuple[ReplicateError, ...]
    for_others: int


def unsealer_of(instance: Instance) -> Unseal:
    """Opens what is sealed for the instance."""
    files = TlsFiles.of(instance.path, instance.config.tls)

    def opened(sealed: bytes, target: str, where: str) -> bytes:
        if target != instance.name:
            raise WrongInstanceError(
                f"the packet is sealed for {target}, and this instance is {instance.name}",
                where=where,
                do="Import it there",
                sealed_for=target,
            )
        return unseal(sealed, files, where=where)

    return opened


def look(instance: Instance, paths: Iterable[Path], now_s: float) -> Inbox:
    """All packets at these paths, files or directories. A file that is named and is for others is refused; in a
    directory it is passed over. NotFoundError where there is no such path."""
    packets, refused, others = [], [], 0
    for path in paths:
        is_directory = path.is_dir()
        for file in packets_in(path):
            try:
                with PacketReader(file, unsealer_of(instance)) as reader:
                    if is_directory and _is_for_others(instance, reader.summary):
                        others += 1
                        continue
                    certificates = judge(instance, reader, now_s)
                    packets.append(Offered(file, reader.summary, reader.bytes, certificates))
            except ReplicateError as error:
                if is_directory and error.facts.get("sealed_for"):
                    others += 1
                else:
                    refused.append(error)
    return Inbox(tuple(packets), tuple(refused), others)


def _is_for_others(instance: Instance, summary: PacketSummary) -> bool:
    is_ours = summary.network == instance.content.network
    return is_ours and (instance.name not in summary.targets or summary.sender == instance.content.uuid)


def judge(instance: Instance, reader: PacketReader, now_s: float) -> bytes:
    """Whether the packet may be taken; the certificates of who has signed it, as `Offered` has them. WrongNetworkError,
    WrongInstanceError (for others, or our own), NotSupportedError (between a supplier and one that is none),
    NotAuthenticatedError, and what loading our certificates raises. `now_s`: the wall clock (Unix seconds)."""
    summary, content, where = reader.summary, instance.content, str(reader.path)
    if summary.network != content.network:
        raise WrongNetworkError(
            f"the packet is of network {summary.network.hex()}, this instance of {content.network.hex()}",
            where=where,
            do="Import it into an instance of its own network",
        )
    if summary.sender == content.uuid:
        raise WrongInstanceError("this packet was made here", where=where, do="Carry it to its target")
    if content.name not in summary.targets:
        raise WrongInstanceError(
            f"the packet is for {', '.join(summary.targets[:8])}, and this instance is {content.name}",
            where=where,
            do=f"Import it there; or have one made for this instance: replicate -i {summary.sender_name} packet export "
            f"--to {content.name}",
        )
    _judge_roles(instance, summary, where)
    files = TlsFiles.of(instance.path, instance.config.tls)
    accepts = instance.config.packets.unsigned == "accept"
    certificates = b""
    if require_signed(reader.signature is not None, files, f"packet {where}", accept_unsigned=accepts):
        assert reader.signature is not None
        signed = reader.signature
        certificates = signed.certificates
        try:
            names = names_of(signed.certificates, signed.value, reader.summary_body, files, now_s)
            _judge_names(instance, summary, names, where)
        except NotAuthenticatedError as error:
            raise NotAuthenticatedError(error.what, where=error.where or where, do=error.do, **error.facts) from error
    peer = next((one for one in instance.peers if one.name == summary.sender_name), None)
    known = read_consumer(instance.consumers_directory, peer.name) if peer else None
    if known is not None and known.uuid not in ("", summary.sender.hex()):
        raise WrongInstanceError(
            f"the packet is of an instance named {summary.sender_name}, which is not the peer of that name",
            where=where,
            do=f"If {summary.sender_name} was made again: peer remove, peer add, then seed it",
        )
    return certificates


def _judge_roles(instance: Instance, summary: PacketSummary, where: str) -> None:
    """A supplier's packets are for suppliers; these take no increment of anybody else, but every receipt."""
    sender = summary.sender_name
    if summary.suppliers is not None and not instance.is_supplier:
        raise NotSupportedError(
            f"{sender} is a supplier, and its packets are for suppliers; {instance.name} is {instance.told_role}",
            where=where,
            do=f"Make this one a supplier, too: replicate -i {instance.named} instance convert --role supplier; or "
            f"have it follow {sender} by a line",
        )
    if summary.suppliers is None and instance.is_supplier and not summary.is_receipt:
        raise NotSupportedError(
            f"{sender} was no supplier when it made this packet, and {instance.name} is one",
            where=where,
            do=f"Make {sender} a supplier (replicate -i {sender} instance convert --role supplier), and export again",
        )


def _judge_names(instance: Instance, summary: PacketSummary, names: frozenset[str], where: str) -> None:
    """Who sends increments must be allowed to; a receipt may be a peer's, too."""
    peer = next((one for one in instance.peers if one.name == summary.sender_name), None)
    if summary.is_receipt and peer is not None:
        judge_receiver(names, peer.certificate_name, me=instance.name)
        return
    allowed = parse_allow(instance.config.receiver.allow)
    may_be = judge_source(
        names, allowed, me=instance.name, consumers=[one.certificate_name for one in instance.peers]
    )  # fmt: skip
    if summary.sender_name not in may_be:
        raise WrongInstanceError(
            f"the packet says that {summary.sender_name} made it, and {', '.join(sorted(names))} has signed it",
            where=where,
            do="Find out who made it",
        )


def take_words(
    instance: Instance,
    packets: Iterable[Offered],
    waiting: tuple[tuple[str, int], ...],
    *,
    is_newest: bool = False,
    lacking: LackingPacket | None = None,
) -> tuple[tuple[str, ...], tuple[tuple[Path, ReplicateError], ...]]:
    """Note what the senders say of themselves, the newest word of each; and which packets wait, and for which
    other. Of whom a word was taken; and, of a peer whose past is not ours, its packet and the decision's own error.
    `is_newest`: they count whatever was heard at a later time, by another clock."""
    newest: dict[str, Offered] = {}
    for one in packets:
        known = newest.get(one.summary.sender_name)
        if known is None or one.summary.created_wall_ns > known.summary.created_wall_ns:
            newest[one.summary.sender_name] = one
    rows: dict[str, EpochRow] = {}
    refused = []
    take = _take_suppliers_word if instance.is_supplier else _take_word
    for name, one in newest.items():
        try:
            rows[name] = take(instance, one, is_newest=is_newest)
        except ReplicateError as error:
            refused.append((one.path, error))
    origins = [origin for name in rows for origin in _named_by(newest[name].summary)]

    def noted(epochs: Epochs) -> Epochs:
        for name, row in rows.items():
            epochs = epochs.heard(name, row, is_newest=is_newest)
        return replace(epochs.named(origins), waiting=waiting, lacking=lacking)

    before = read_epochs(instance.consumers_directory)
    if rows or (waiting, lacking) != (before.waiting, before.lacking):
        change_epochs(instance.consumers_directory, noted)
    if instance.is_supplier:
        _take_told(instance)
    return tuple(rows), tuple(refused)


def _named_by(summary: PacketSummary) -> tuple[OriginName, ...]:
    """The origins that it names; a supplier's own too, which may have written nothing yet."""
    if summary.suppliers is None:
        return summary.origins
    living = Origin(summary.sender, summary.suppliers.incarnation).key
    return (*summary.origins, OriginName(living, summary.sender_name, summary.suppliers.incarnation))


def _back(instance: Instance, histories: Sequence[History], summary: PacketSummary, decision: object) -> str:
    """How a peer takes back an incarnation that nobody else knows: one that was restored began it, or one that took
    over. Where nobody here took over from it, it may be this site that has to go back; or it was restored, and has less
    than a peer has of it."""
    name = instance.name
    if isinstance(decision, RollbackFirst) and decision.common_origin_seqno and decision.ended_by in ("", name):
        wrote = [known for known in histories if known.origin.key == decision.origin]
        if wrote and wrote[0].instance == instance.content.uuid:
            return (
                f"{summary.sender_name} has what {name} has written itself, and {name} has not. Where {name} was "
                f"restored from a backup, it gets that back, and nothing is to be written before: replicate -i "
                f"{instance.named} replica restore; then have {summary.sender_name} export what is not here"
            )
    if isinstance(decision, RollbackFirst) and not decision.common_origin_seqno:
        sender, me = summary.sender_name, instance.content.uuid
        for one in summary.origins:
            if one.key == decision.origin and one.begins > 1:
                there = (
                    f"here: replicate -i {sender} rollback --to {one.begins - 1}, which keeps what is more in a file; "
                    "then let it send a receipt again"
                )
                since = [known.instance for known in histories]
                if summary.sender in since and me in since[since.index(summary.sender) :]:
                    return f"T{there}"
                return (
                    f"If {sender} took over: replicate -i {instance.named} demote, and import a packet of it with "
                    f"transactions, which says how far to go back here. If it did not, t{there}"
                )
    return ""


def _take_word(instance: Instance, one: Offered, *, is_newest: bool) -> EpochRow:
    """What it says of itself. A peer's: our journal is kept for it from there on."""
    name, own, wall_ns = one.summary.sender_name, one.summary.own, one.summary.created_wall_ns
    row = EpochRow(own, wall_ns)
    if not _is_news(instance, name, wall_ns, is_newest=is_newest):
        return row
    restart = Restart(own.last_seqno + 1, own.vector, own.chains)
    with door_of(instance) as door:
        decision, histories = decide(restart, view_for(door, restart).source), door.catalogue_now().histories
    if not isinstance(decision, StartAt | JournalMissing):
        error = decision.error()
        raise type(error)(
            f"packet {one.path.name} says that {name} has transaction {own.last_seqno}: {error.what}",
            where=str(one.path),
            do=_back(instance, histories, one.summary, decision) or error.do,
        )
    is_lost = isinstance(decision, JournalMissing)
    _keep_for(instance, one, Consumer(name, own.last_seqno, one.summary.sender.hex(), wall_ns, is_lost))
    return row


def _take_suppliers_word(instance: Instance, one: Offered, *, is_newest: bool) -> EpochRow:
    """The same of a supplier, at the place of our journal up to which it has everything: it counts by its own. What it
    lacks and is not held here any more, another supplier may have: so it is not given up."""
    name, chains, wall_ns = one.summary.sender_name, one.summary.own.chains, one.summary.created_wall_ns
    with door_of(instance) as door:
        view = look_at_suppliers(instance, door, Epochs().named(_named_by(one.summary)))
        try:
            reached = view.reached(chains)
        except ReplicateError as error:
            raise type(error)(
                f"packet {one.path.name} of {name}: {error.what}", where=str(one.path), do=error.do
            ) from error
    if name in view.met and view.met[name].living in view.supplied.end:
        # It has all that it writes. What it told before that has its word on it.
        living = view.met[name].living
        chains = joined(chains, {living: view.supplied.end[living]})
    if reached is not None and _is_news(instance, name, wall_ns, is_newest=is_newest):
        _keep_for(instance, one, Consumer(name, reached, one.summary.sender.hex(), wall_ns))
    return EpochRow(Position(reached or 0, vector_of(chains), chains), wall_ns)


def _take_told(instance: Instance) -> None:
    """Peers that get packets confirm by what they write, too, whatever way it has come here."""
    directory = instance.consumers_directory
    with door_of(instance) as door:
        view = look_at_suppliers(instance, door, read_epochs(directory))
        for peer in instance.peers:
            row, met = view.row(peer.name), view.met.get(peer.name)
            if row is None or met is None or not peer.by_packets:
                continue
            reached = view.position(row.heard).last_seqno
            with positions_locked(directory):
                known = read_consumer(directory, peer.name) or Consumer(peer.name)
                if reached > known.acknowledged_seqno and not known.needs_seed:
                    write_consumer(directory, replace(known, acknowledged_seqno=reached, uuid=met.instance.hex()))


def _is_news(instance: Instance, name: str, wall_ns: int, *, is_newest: bool) -> bool:
    """Whether it is a peer's word, and newer than what that one has confirmed on a line."""
    if all(peer.name != name for peer in instance.peers):
        return False
    known = read_consumer(instance.consumers_directory, name)
    return known is None or known.acknowledged_wall_ns < wall_ns or is_newest


def _keep_for(instance: Instance, one: Offered, consumer: Consumer) -> None:
    """From now on the journal is kept for a peer from there."""
    directory, name = instance.consumers_directory, consumer.name
    if one.certificates:
        path = certificate_of(instance, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(path, one.certificates)
    with positions_locked(directory):
        write_consumer(directory, consumer)
        if consumer.acknowledged_seqno < read_aged(directory, name):
            write_aged(directory, name, None)  # it was restored, or a packet was lost: from there on all is kept
        held = read_hold(directory, name)
        if held is not None and held <= consumer.acknowledged_seqno:
            write_hold(directory, name, None)
