"""Judges packets: is this one for us, from one who may send it, and what does its sender say of itself?

Guarantees: nothing of a packet counts before its record checks, its network, its target and, where this instance has a
certificate, its signature and signer are found well. What a peer says of itself is judged by the function that answers
it on a line (wire/resync.py), before anything is kept or pruned for it.
Refuses to know: in which order packets are applied (order.py), and how.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from replicate.door.restart_view import view_for
from replicate.door.snapshot import door_of
from replicate.errors import ReplicateError, WrongInstanceError, WrongNetworkError
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
from replicate.security.sealing import unseal
from replicate.security.signing import names_of, require_signed
from replicate.security.tls_files import TlsFiles
from replicate.settings.peer_authority import judge_receiver, judge_source, parse_allow
from replicate.system.files import replace_file
from replicate.transfer.packet.epochs import EpochRow, Epochs
from replicate.transfer.packet.export import certificate_of
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.read import PacketReader, Unseal, packets_in
from replicate.transfer.packet.store import change_epochs, read_epochs
from replicate.wire.message import Restart
from replicate.wire.resync import JournalMissing, RollbackFirst, StartAt, decide


@dataclass(frozen=True, slots=True)
class Offered:
    """A packet that may be taken. `certificates`: of who has signed it, PEM; b"" where nobody had to."""

    path: Path
    summary: PacketSummary
    size: int
    certificates: bytes = b""


@dataclass(frozen=True, slots=True)
class Inbox:
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
    WrongInstanceError (for others, or our own), NotAuthenticatedError, and what loading our certificates raises.
    `now_s`: the wall clock (Unix seconds)."""
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
    files = TlsFiles.of(instance.path, instance.config.tls)
    accepts = instance.config.packets.unsigned == "accept"
    certificates = b""
    if require_signed(reader.signature is not None, files, f"packet {where}", accept_unsigned=accepts):
        assert reader.signature is not None
        signed = reader.signature
        certificates = signed.certificates
        names = names_of(signed.certificates, signed.value, reader.summary_body, files, now_s)
        _judge_names(instance, summary, names, where)
    peer = next((one for one in instance.peers if one.name == summary.sender_name), None)
    known = read_consumer(instance.consumers_directory, peer.name) if peer else None
    if known is not None and known.uuid not in ("", summary.sender.hex()):
        raise WrongInstanceError(
            f"the packet is of an instance named {summary.sender_name}, which is not the peer of that name",
            where=where,
            do=f"If {summary.sender_name} was made again: peer remove, peer add, then seed it",
        )
    return certificates


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
) -> tuple[tuple[str, ...], tuple[tuple[Path, ReplicateError], ...]]:
    """Note what the senders say of themselves, the newest word of each; and which packets wait. Of whom a word was
    taken; and, of a peer whose past is not ours, its packet and the decision's own error. `is_newest`:
    they count whatever was heard at a later time, by another clock."""
    newest: dict[str, Offered] = {}
    for one in packets:
        known = newest.get(one.summary.sender_name)
        if known is None or one.summary.created_wall_ns > known.summary.created_wall_ns:
            newest[one.summary.sender_name] = one
    refused = []
    for name, one in list(newest.items()):
        try:
            _take_word(instance, one, is_newest=is_newest)
        except ReplicateError as error:
            refused.append((one.path, error))
            del newest[name]
    origins = [origin for one in newest.values() for origin in one.summary.origins]

    def noted(epochs: Epochs) -> Epochs:
        for name, one in newest.items():
            row = EpochRow(one.summary.own, one.summary.created_wall_ns)
            epochs = epochs.heard(name, row, is_newest=is_newest)
        return replace(epochs.named(origins), waiting=waiting)

    if newest or waiting != read_epochs(instance.consumers_directory).waiting:
        change_epochs(instance.consumers_directory, noted)
    return tuple(newest), tuple(refused)


def _back(summary: PacketSummary, decision: object) -> str:
    """How a peer takes back an incarnation that nobody else knows: one that was restored began it."""
    if isinstance(decision, RollbackFirst) and not decision.common_origin_seqno:
        for one in summary.origins:
            if one.key == decision.origin and one.begins > 1:
                return (
                    f"There: replicate -i {summary.sender_name} rollback --to {one.begins - 1}, which keeps what is "
                    "more in a file; then let it send a receipt again"
                )
    return ""


def _take_word(instance: Instance, one: Offered, *, is_newest: bool) -> None:
    """A peer's: our journal is kept for it from there on."""
    name, own, wall_ns = one.summary.sender_name, one.summary.own, one.summary.created_wall_ns
    if all(peer.name != name for peer in instance.peers):
        return
    directory = instance.consumers_directory
    known = read_consumer(directory, name)
    if known is not None and known.acknowledged_wall_ns >= wall_ns and not is_newest:
        return
    restart = Restart(own.last_seqno + 1, own.vector, own.chains)
    with door_of(instance) as door:
        decision = decide(restart, view_for(door, restart).source)
    if not isinstance(decision, StartAt | JournalMissing):
        error = decision.error()
        raise type(error)(
            f"packet {one.path.name} says that {name} has transaction {own.last_seqno}: {error.what}",
            where=str(one.path),
            do=_back(one.summary, decision) or error.do,
        )
    if one.certificates:
        path = certificate_of(instance, name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(path, one.certificates)
    with positions_locked(directory):
        is_lost = isinstance(decision, JournalMissing)
        write_consumer(directory, Consumer(name, own.last_seqno, one.summary.sender.hex(), wall_ns, is_lost))
        if own.last_seqno < read_aged(directory, name):
            write_aged(directory, name, None)  # it was restored, or a packet was lost: from there on all is kept
        held = read_hold(directory, name)
        if held is not None and held <= own.last_seqno:
            write_hold(directory, name, None)
