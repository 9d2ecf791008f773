"""`replicate peer add|list|remove`: the registered consumers of this instance's journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import LOOKS, Noun, Once, columns, emit, open_instance
from replicate.cli.completion_words import peers
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import start_again, stop_and_start_again
from replicate.errors import AlreadyRunningError, NotFoundError, UsageError
from replicate.model.partitions import ALL
from replicate.model.start_command import stop_command
from replicate.settings.load import Address

if TYPE_CHECKING:
    from replicate.instance.file import PeerEntry
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def peer() -> None:
    """Register the secondaries that this instance sends to."""


@peer.command()
@click.argument("name")
@click.argument("address", metavar="[HOST:PORT]", required=False)
@click.option("--packets", is_flag=True, help="No line leads to it: it gets packets (replicate help packets).")
@click.option("--certificate", metavar="NAME", help="The name in its certificate, if that is not NAME.")
@click.option("--partitions", metavar="NAME,…", help="The most that it may have, of partitions; or ALL.")
@click.option("--outbox", cls=Once, metavar="DIR", help="Where packets for it are written [packets.outbox].")
@click.option("--inbox", cls=Once, metavar="DIR", help="Where packets of it arrive, too [packets.inbox].")
@click.option("--replace", is_flag=True, help="Change what is registered of a peer.")
def add(
    name: str,
    address: str | None,
    packets: bool,
    certificate: str | None,
    partitions: str | None,
    outbox: str | None,
    inbox: str | None,
    replace: bool,
) -> None:
    """Register NAME, whose Receiver Server listens at HOST:PORT. The journal is kept for it from now on.

    Another host is reached by TLS only, so this instance needs its certificate first.
    """
    from replicate.admin.peer_address import checked_address
    from replicate.instance.instance import AS_KNOWN

    if packets == bool(address):
        raise UsageError(
            "a peer has an address, or gets packets",
            do=f"replicate -i INSTANCE peer add {name} HOST:PORT; or: replicate -i INSTANCE peer add {name} --packets",
        )
    opened = open_instance()
    bound: tuple[int, ...] | None = AS_KNOWN
    if partitions is not None:
        from replicate.admin.subscriptions import numbers_of

        bound = None if partitions.upper() == ALL else numbers_of(opened, partitions.split(","))
    where = checked_address(opened, name, address) if address else Address("", 0)
    known = next((entry for entry in opened.peers if entry.name == name), None)
    boxes = _box(outbox, known.outbox if known else ""), _box(inbox, known.inbox if known else "")
    entry = opened.register_peer(
        name, where.host, where.port, certificate=certificate, replace_address=replace, partitions=bound, boxes=boxes
    )
    emit(entry, _added(opened, known, entry))


def _box(given: str | None, known: str) -> str:
    """A directory of packets, as it is registered; "" is that of the settings. NotFoundError when it is not there."""
    if not given:
        return known if given is None else ""
    path = Path(given).absolute()
    if not path.is_dir():
        raise NotFoundError("there is no such directory", where=str(path), do="Make it, or name another")
    return str(path)


def _added(opened: Instance, known: PeerEntry | None, entry: PeerEntry) -> list[str]:
    """What was done, and the next step."""
    from replicate.status.collect import collect

    name = f"source-{entry.name}"
    at = f"peer {entry.name} {entry.whereabouts}"
    is_running = DaemonFiles(opened.path, name).lock.probe() is not None
    if entry.by_packets:
        where = "where it has no copy yet, " * opened.is_supplier
        do = (
            f"stop its Source Server: {stop_command(name)}"
            if is_running
            else f"{where}seed it: replicate -i {opened.named} seed --to-file FILE --for {entry.name}; then, again and "
            f"again: replicate -i {opened.named} packet export --to {entry.name}"
        )
        return [f"{at} registered" + (" already" if known == entry else ""), f"next: {do}"]
    start = start_again(opened, name)
    if known == entry:
        return [f"{at} was registered already"] + ([] if is_running else [f"next: {start}"])
    if known is None or not is_running:
        return [f"{at} registered" + (f", before {known.whereabouts}" if known else ""), f"next: {start}"]
    if not any(report.is_connected for report in collect(opened).peers if report.name == entry.name):
        return [f"{at} registered, before {known.whereabouts}; its Source Server goes there at its next try"]
    return [
        f"{at} registered; its Source Server stays connected to {known.address} as long as that answers",
        f"next, to have it go there now: {stop_and_start_again(opened, name)}",
    ]


@peer.command(name="list")
def list_() -> None:
    """List the registered peers, and what each has durably applied."""
    from replicate.instance.consumers import read_consumer, told_seqno

    opened = open_instance(LOOKS)
    rows: list[dict[str, Any]] = []
    addresses = {entry.name: entry.address for entry in opened.peers}

    def told(numbers: tuple[int, ...]) -> str:
        return ", ".join(map(opened.content.partitions.name, numbers))

    for entry in opened.peers:
        consumer = read_consumer(opened.consumers_directory, entry.name)
        rows.append(
            {
                "name": entry.name,
                "host": entry.host,
                "port": entry.port,
                **({"by_packets": True} if entry.by_packets else {}),
                "acknowledged_seqno": told_seqno(opened.consumers_directory, consumer) if consumer else 0,
                "needs_seed": consumer.needs_seed if consumer else False,
                "passive": entry.passive,
                **({"partitions": told(entry.partitions)} if entry.partitions is not None else {}),
                **{name: box for name, box in (("outbox", entry.outbox), ("inbox", entry.inbox)) if box},
            }
        )
    emit(
        rows,
        columns(
            [
                r["name"],
                addresses[r["name"]],
                f"durable up to {r['acknowledged_seqno']}",
                _noted(r),
            ]
            for r in rows
        ),
    )


def _noted(peer: dict[str, Any]) -> str:
    if peer["needs_seed"]:
        return "must be seeded again"
    bound = f"{peer['partitions']} at most" if "partitions" in peer else ""
    passive = "passive until this instance is primary" if peer["passive"] else ""
    boxes = [f"{name} {peer[name]}" for name in ("outbox", "inbox") if name in peer]
    return ", ".join(filter(None, (passive, bound, *boxes)))


@peer.command()
@click.argument("name", shell_complete=peers)
def remove(name: str) -> None:
    """Forget NAME: the journal is no longer kept for it."""
    from replicate.compare.last_compare import forget_compared
    from replicate.instance.consumers import remove_consumer
    from replicate.transfer.packet.epochs_file import NAME as EPOCHS_NAME
    from replicate.transfer.packet.epochs_file import change_epochs
    from replicate.transfer.seed.make import kept_seed

    opened = open_instance()
    opened.peer(name)
    if DaemonFiles(opened.path, f"source-{name}").lock.probe() is not None:
        raise AlreadyRunningError(
            f"the Source Server of peer {name} runs",
            where=str(opened.path),
            do=f"Stop it first: {stop_command(f'source-{name}')}",
        )
    lacked = _lacked(opened, name)
    opened.unregister_peer(name)
    remove_consumer(opened.consumers_directory, name)
    forget_compared(opened, name)
    if (opened.consumers_directory / EPOCHS_NAME).exists():
        change_epochs(opened.consumers_directory, lambda known: known.forgotten(name))
    kept_seed(opened, name).unlink(missing_ok=True)
    emit({"removed": name, "lacked": lacked}, [f"peer {name} removed", *_last_word(opened, name, lacked)])


def _lacked(opened: Instance, name: str) -> tuple[int, int] | None:
    """The first and the last transaction of the journal that the peer is not known to have; None: it has all."""
    from replicate.lost.peers_lack import Owner, look

    found = look(Owner.of(opened))
    has = next((peer.acknowledged_seqno for peer in found.peers if peer.name == name), found.last_seqno)
    first = max(found.oldest_seqno, has + 1)
    return (first, found.last_seqno) if first <= found.last_seqno else None


def _last_word(opened: Instance, name: str, lacked: tuple[int, int] | None) -> list[str]:
    if lacked is None:
        return []
    first, last = lacked
    what = f"transaction {first}" if first == last else f"{last - first + 1} transactions, {first} to {last}"
    show = f"replicate -i {opened.named} journal show --from {first} --to {last}"
    return [f"{name} is not known to have {what}; until the journal is pruned, this shows them: {show}"]
