"""`replicate packet export|import|list|show|verify|exports|recover`: replication without a line."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import (
    LOOKS,
    Noun,
    Once,
    columns,
    emit,
    emit_lines,
    has_instance,
    instance_name,
    open_instance,
    wants_json,
)
from replicate.cli.completion_words import peers
from replicate.cli.engine import sessions_for
from replicate.cli.replay import summary_lines
from replicate.daemon.last_heard import utc
from replicate.errors import (
    ConfigurationError,
    DamagedError,
    JournalIOError,
    NotFoundError,
    PeerError,
    ReplicateError,
    UsageError,
    pasteable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from replicate.instance.instance import Instance
    from replicate.transfer.packet.export import Exported
    from replicate.transfer.packet.format import PacketSummary
    from replicate.transfer.packet.read import PacketReader
    from replicate.transfer.packet.sealed import PacketSealer
    from update_process.replay.unpacking import Imported

FILE_BYTES_MAX = 2**50


@click.group(cls=Noun)
def packet() -> None:
    """Carry what others lack as files, where no line leads to them."""


@packet.command()
@click.option(
    "--to", "targets", metavar="PEER", multiple=True, shell_complete=peers, help="Whom it is for (repeatable)."
)
@click.option("--file", "file", cls=Once, metavar="FILE", help="Write one packet, to this file.")
@click.option("--outbox", cls=Once, metavar="DIR", help="Write packets into this directory [packets.outbox].")
@click.option("--max-bytes", cls=Once, type=int, metavar="N", help="Most bytes of one packet [packets.max_bytes].")
@click.option("--encrypt", is_flag=True, help="Seal each packet, so that its target alone reads it.")
@click.option("--receipt", is_flag=True, help="Say how far this instance is, and send nothing else.")
def export(
    targets: tuple[str, ...],
    file: str | None,
    outbox: str | None,
    max_bytes: int | None,
    encrypt: bool,
    receipt: bool,
) -> None:
    """Write what the peers lack as packets; without --to, for each peer that gets packets.

    It goes on where the last export to them ended, whether or not that has arrived: `packet recover` is for a packet
    that is lost. What stops the export to one peer does not stop those to the others.
    """
    import replicate
    from replicate.cli.progress import exporting
    from replicate.transfer.packet.export import PACKET_BYTES_MIN, ExportRun, sealer_of, signer_of
    from replicate.transfer.packet.scrub import age

    if file and outbox:
        raise UsageError("--file and --outbox together make no sense", do="Give one of them")
    opened = open_instance()
    wanted = targets or tuple(entry.name for entry in opened.peers if entry.by_packets)
    if not wanted:
        raise UsageError(
            "no peer gets packets",
            where=str(opened.path),
            do=f"replicate -i {opened.named} peer add NAME --packets; or name one with --to",
        )
    if max_bytes is not None and max_bytes < PACKET_BYTES_MIN:
        raise UsageError(f"a packet of {max_bytes} bytes is too small", do=f"Allow at least {PACKET_BYTES_MIN}")
    bound = max_bytes or (FILE_BYTES_MAX if file else opened.config.packets.max_bytes)
    name_of = _names(file, outbox) if file or outbox else None
    groups = [wanted] if targets and not encrypt else [(name,) for name in wanted]

    def sealer(target: str) -> PacketSealer:
        return sealer_of(opened, target, time.time())

    made: list[Exported] = []
    errors: list[ReplicateError] = []
    run = ExportRun(
        opened,
        sign=signer_of(opened),
        sealer=sealer if encrypt else None,
        release=replicate.__version__,
        now_ns=time.time_ns,
    )
    try:
        with run, exporting() as told:
            for group in groups:
                try:
                    named = name_of or _names_in_outbox(opened, group)
                    if receipt:
                        made.append(run.receipt(group, named))
                        continue
                    for one in run.increments(group, named, max_bytes=bound, is_one=bool(file), told=told):
                        made.append(one)
                except ReplicateError as error:
                    errors.append(error)
        age(opened, time.time_ns())
    except BaseException:  # Ctrl-C, say
        _run_hook(opened, made)  # what was made before is whole, and to be sent
        raise
    lines = [_exported(one) for one in made]
    if not lines and not errors:
        lines.append(f"nothing to send: {', '.join(wanted)} should have {run.last_seqno}")
    if made or not errors:
        emit({"seqno": run.last_seqno, "packets": made}, lines)
    _end_with([*_run_hook(opened, made), *errors])


def _end_with(errors: list[ReplicateError]) -> None:
    """The last of them is the command's own; what came before it is told before it."""
    for error in errors[:-1]:
        click.echo(pasteable(str(error), shlex.quote(instance_name())), err=True)
    if errors:
        raise errors[-1]


def _names(file: str | None, outbox: str | None) -> Callable[[str], Path]:
    """Where a packet of a name goes, as it was said."""
    place = Path(file).absolute().parent if file else Path(outbox or "").absolute()
    if not place.is_dir():
        raise NotFoundError("there is no such directory", where=str(place), do="Make it, or name another")
    path = Path(file).absolute() if file else None
    return lambda name: path or place / name


def _names_in_outbox(opened: Instance, targets: tuple[str, ...]) -> Callable[[str], Path]:
    """The same where nothing was said: in the outbox of these peers, or that of the settings."""
    own = {entry.outbox for entry in opened.peers if entry.name in targets}
    if len(own) > 1:
        raise UsageError(
            f"{', '.join(targets)} have not the same outbox, and they get one packet",
            where=str(opened.path),
            do="Export to each of them, or name an --outbox",
        )
    if box := next(iter(own), ""):
        if not Path(box).is_dir():  # it may be a disk that is not there now
            raise NotFoundError(
                f"the outbox of {', '.join(targets)} is not there",
                where=box,
                do=f"Mount it, or register another: replicate -i {opened.named} peer add {targets[0]} … --outbox DIR "
                "--replace",
            )
        return lambda name: Path(box) / name
    directory = opened.path / opened.config.packets.outbox
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return lambda name: directory / name


def _exported(one: Exported) -> str:
    what = _brings(one.first_seqno, one.last_seqno, is_receipt=one.is_receipt)
    return f"packet {one.number} for {', '.join(one.targets)}: {what}, {_size(one.bytes)}: {one.path}"


def _size(count: int) -> str:
    from replicate.status.text import size  # here: an import needs none of it, and the modules of status take 12 ms

    return size(count)


def _brings(first_seqno: int, last_seqno: int, *, is_receipt: bool) -> str:
    if is_receipt:
        return f"receipt at {last_seqno}"
    if last_seqno < first_seqno:
        return f"a part of {first_seqno}"
    return f"transactions {first_seqno} to {last_seqno}"


def _run_hook(opened: Instance, made: list[Exported]) -> list[ConfigurationError]:
    """For each of them, whatever becomes of the others; what was wrong with it. The packets are whole."""
    try:
        words = shlex.split(opened.config.packets.hook)
    except ValueError as error:
        return [
            ConfigurationError(
                f"packets.hook is no command: {error}", where=str(opened.path), do="Close its quotation marks"
            )
        ]
    errors = []
    for one in made if words else []:
        try:
            done = subprocess.run([*words, str(one.path)], check=False, stdout=2)  # our own output is for others
            what = f"ended with {done.returncode}" if done.returncode else ""
        except OSError as error:
            what = f"cannot be run: {error.strerror}"
        if what:
            errors.append(
                ConfigurationError(
                    f"packet {one.number} is whole, and packets.hook {what}",
                    where=words[0],
                    do=f"Carry {one.path} yourself, and mend the command or the setting",
                )
            )
    return errors


@packet.command(name="import")
@click.argument("paths", nargs=-1, metavar="[FILE|DIR]…")
@click.option("--dry-run", is_flag=True, help="Verify and read; change nothing.")
@click.option("--remove", is_flag=True, help="Remove the packets that are applied whole.")
@click.option("--master", metavar="URL", help="The Spark master [local[*]]; with it Spark is the engine.")
@click.option("--engine", type=click.Choice(["local", "spark"]), help="Who finds the net change [local].")
def import_(paths: tuple[str, ...], dry_run: bool, remove: bool, master: str | None, engine: str | None) -> None:
    """Apply packets, in whatever order they came; without a name, those in packets.inbox and the peers' inboxes.

    Daemons of this secondary, or supplier, that run stand aside meanwhile. What cannot be applied before another packet
    is there waits, and the exit code is 75.
    """
    from replicate.cli.progress import replaying
    from update_process.replay.packets import import_packets

    spark = sessions_for(engine, master)
    opened = open_instance()
    places = [Path(one).absolute() for one in paths]
    if not places:
        places = [opened.path / opened.config.packets.inbox]
        places[0].mkdir(mode=0o700, parents=True, exist_ok=True)
        places += [Path(box) for box in dict.fromkeys(entry.inbox for entry in opened.peers) if box]
        for one in [one for one in places if not one.is_dir()]:  # a disk, say: nothing has arrived there
            click.echo(f"not there now: the inbox {one}", err=True)
            places.remove(one)
    with replaying() as told:
        done = import_packets(opened, places, now_s=time.time(), spark=spark, dry_run=dry_run, remove=remove, told=told)
    facts: dict[str, Any] = {
        name: getattr(done, name)
        for name in (
            "seqno",
            "applied",
            "in_part",
            "known",
            "waiting",
            "heard",
            "for_others",
            "removed",
            "dry_run",
            "replayed",
            "transactions",
            "merged",
        )
    }
    emit(facts, _imported(opened, done))
    _end_with(done.errors)


def _imported(opened: Instance, done: Imported) -> list[str]:
    lines = []
    if done.replayed is not None or done.applied or done.in_part:
        count = len(done.applied)
        verb = "would be applied" if done.dry_run else "applied"
        lines.append(f"{count} packet{'s' * (count != 1)} {verb}{', another in part' if done.in_part else ''}")
    if done.transactions:
        merged = f", {done.merged} of them merged" if done.merged else ""
        lines.append(f"{done.transactions} transaction{'s' * (done.transactions != 1)} applied{merged}")
    if done.replayed is not None:
        replayed = summary_lines(done.replayed, opened)
        lines += [line for line in replayed if not line.startswith(("next:", "  "))]  # where it was unpacked is gone
    lines += [f"{done.known} bring{'s' * (done.known == 1)} nothing that is not here"] if done.known else []
    lines += [f"{done.for_others} {'is' if done.for_others == 1 else 'are'} for others"] if done.for_others else []
    lines += [f"heard of {', '.join(done.heard)}"] if done.heard else []
    lines += [f"waits: {path}" for path in done.waiting]
    return lines or ["no packet for this instance is there"] * (not done.errors)


# Looking at them.


def _read(file: Path) -> PacketReader:
    """What is sealed is opened where an instance is named that it is for."""
    from replicate.transfer.packet.judge_packets import unsealer_of
    from replicate.transfer.packet.read import PacketReader

    return PacketReader(file, unsealer_of(open_instance(LOOKS)) if has_instance() else None)


def _files(paths: tuple[str, ...]) -> Iterator[Path]:
    from replicate.transfer.packet.read import packets_in

    places = [Path(one) for one in paths]
    if not places:
        opened = open_instance(LOOKS)
        boxes = [opened.config.packets.inbox, opened.config.packets.outbox]
        boxes += [box for entry in opened.peers for box in (entry.inbox, entry.outbox) if box]
        places = [one for one in dict.fromkeys(opened.path / box for box in boxes) if one.is_dir()]
    for place in places:
        yield from packets_in(place)


@packet.command(name="list")
@click.argument("paths", nargs=-1, metavar="[FILE|DIR]…")
def list_(paths: tuple[str, ...]) -> None:
    """List packets, by what they say they are; without a name, those in the inboxes and the outboxes."""
    rows, lines = [], []
    for file in _files(paths):
        try:
            with _read(file) as reader:
                rows.append(one := _facts(reader))
        except ReplicateError as error:
            rows.append({"file": str(file), "error": str(error)})
            lines.append(f"{file}: {error.what}")
            continue
        made = f"{utc(one['created_wall_ns'])}, {_size(one['bytes'])}"
        lines.append(f"{file}: {one['sender']} {one['number']} for {', '.join(one['targets'])}, {_range(one)}; {made}")
    emit(rows, lines or ["no packet is there"])


def _facts(reader: PacketReader) -> dict[str, Any]:
    summary = reader.summary
    return {
        "file": str(reader.path),
        "bytes": reader.bytes,
        "sender": summary.sender_name,
        "number": summary.number,
        "before": summary.before,
        "targets": list(summary.targets),
        "receipt": summary.is_receipt,
        "first_seqno": summary.first_seqno,
        "last_seqno": summary.last_seqno,
        "inside": summary.inside,
        "end_inside": summary.end_inside,
        "sender_seqno": summary.own.last_seqno,
        "created_wall_ns": summary.created_wall_ns,
        "release": summary.release,
        "between_suppliers": summary.suppliers is not None,
        "partitions": list(summary.excerpt.partitions) if summary.excerpt and summary.excerpt.partitions else None,
        "filter": summary.excerpt.filter if summary.excerpt else "",
        "signed": reader.signature is not None,
        "sealed": reader.is_sealed,
    }


def _range(facts: dict[str, Any]) -> str:
    if facts["receipt"]:
        return f"receipt at {facts['sender_seqno']}"
    first, last = facts["first_seqno"], facts["last_seqno"]
    text = f"{first} to {last}" if last >= first else f"of {first}"
    return text + (f", and a part of {last + 1}" if facts["end_inside"] and last >= first else "")


@packet.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--transactions",
    is_flag=True,
    help="Each transaction that it brings, and with -i whether it is there: also of one that does not fit (DIVERGED). "
    "With --json one line for each, as journal show has it, and nothing else.",
)
def show(file: str, transactions: bool) -> None:
    """Show what a packet says it is, with its epochs: what it needs, and what it leads to."""
    path = Path(_one(file))
    with _read(path) as reader:
        facts = _facts(reader)
        names = {one.key: f"{one.instance}/{one.incarnation}" for one in reader.summary.origins}
        epochs = _epochs(reader.summary, names)
        signer = _signer(reader)
    facts |= {"epochs": epochs, "signer": signer}
    if transactions and wants_json():
        _show_transactions(path)
        return
    lines = columns(
        [
            ["packet", f"{facts['number']} of {facts['sender']}, for {', '.join(facts['targets'])}"],
            ["brings", _range(facts)],
            ["made", f"{utc(facts['created_wall_ns'])} by {facts['release']}"],
            ["size", _size(facts["bytes"])],
            ["signed", signer or "no"],
            ["sealed", "yes" if facts["sealed"] else "no"],
            *([["partitions", ", ".join(map(str, facts["partitions"])) + " only"]] if facts["partitions"] else []),
            *([["filter", facts["filter"]]] if facts["filter"] else []),
        ]
    )
    lines += columns(
        [["origin", "needs", "leads to", "the sender has"], *([str(v) for v in one.values()] for one in epochs)]
    )
    if emit(facts, lines) and transactions:
        _show_transactions(path)


def _show_transactions(path: Path) -> None:
    """Whatever is here. It is unpacked where temporary files go."""
    import tempfile

    from replicate.audit.show import document
    from replicate.transfer.packet.judge_packets import Offered, unsealer_of
    from update_process.replay.packet_content import transactions_in, vector_here

    opened = open_instance(LOOKS) if has_instance() else None
    here = None if opened is None else vector_here(opened)
    name = "" if opened is None else opened.name
    with _read(path) as reader:
        offered = Offered(path, reader.summary, reader.bytes)
    counts = {True: 0, False: 0}

    def told(stage: Path) -> Iterator[str]:
        for one in transactions_in(offered, None if opened is None else unsealer_of(opened), stage):
            is_record = not one.origin_seqno  # that opens an incarnation: it has no number of its own
            is_here = None if here is None or is_record else here.last(int(one.origin, 16)) >= one.origin_seqno
            if is_here is not None and one.kind != "PART":
                counts[is_here] += 1
            if wants_json():
                yield json.dumps({**document(one), "is_here": is_here})
                continue
            head, *changes = one.lines()
            yield head + ("" if is_here is None else f"  {'here' if is_here else 'NOT HERE'}")
            yield from changes
        if not wants_json() and here is not None:
            yield f"{counts[False]} of {sum(counts.values())} are not on {name}"

    with tempfile.TemporaryDirectory(prefix="packet-show-") as stage:
        emit_lines(told(Path(stage)))


def _epochs(summary: PacketSummary, names: dict[int, str]) -> list[dict[str, Any]]:
    vectors = {"base": summary.base.vector, "end": summary.end.vector, "sender": summary.own.vector}
    keys = dict.fromkeys(key for vector in vectors.values() for key in vector.origins())
    return [
        {"origin": names.get(key, f"{key:08x}"), **{name: vector.last(key) for name, vector in vectors.items()}}
        for key in keys
    ]


def _signer(reader: PacketReader) -> str:
    if reader.signature is None:
        return ""
    from replicate.security.certificate import describe

    found = describe(reader.signature.certificates, where=str(reader.path))
    return ", ".join(found.instances or found.names) + f", until {utc(int(found.not_after_s * 1e9))}"


def _one(file: str) -> str:
    if Path(file).is_dir():
        raise UsageError("this is a directory", where=file, do="Name one packet")
    return file


@packet.command()
@click.argument("paths", nargs=-1, metavar="FILE|DIR…", required=True)
def verify(paths: tuple[str, ...]) -> None:
    """Read packets whole, and say whether every byte of them is as it was made; with -i, whether it may be imported
    there, too. All of them are read, and each that is not well is named; the exit code is that of the worst."""
    from replicate.transfer.packet.excerpt import judge_excerpt
    from replicate.transfer.packet.judge_packets import judge

    opened = open_instance(LOOKS) if has_instance() else None
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    errors: list[ReplicateError] = []
    for file in _files(paths):
        try:
            with _read(file) as reader:
                reader.verify()
                if opened is not None:
                    judge(opened, reader, time.time())
                    judge_excerpt(opened, reader.summary, str(file))
                rows.append(one := _facts(reader))
            lines.append(f"{file}: whole, {_range(one)}")
        except ReplicateError as error:
            errors.append(error)
            rows.append({"file": str(file), "error": error.what, "code": error.code})
            lines.append(f"{file}: {error.code}: {error.what}")
    emit(rows, lines or ["no packet is there"])
    if errors:
        raise min(errors, key=_weight)


def _weight(error: ReplicateError) -> int:
    """Less is worse: bytes that are not as they were made, who may not send it or not here, what cannot be read, all
    else."""
    order = (DamagedError.exit_code, PeerError.exit_code, JournalIOError.exit_code)
    return order.index(error.exit_code) if error.exit_code in order else len(order)


# What was exported.


@packet.command()
@click.option("--to", "target", metavar="PEER", shell_complete=peers, help="Only those for this one.")
def exports(target: str | None) -> None:
    """List the packets with transactions that this instance has made."""
    from replicate.transfer.packet.epochs_file import read_epochs

    opened = open_instance(LOOKS)
    found = [one for one in read_epochs(opened.consumers_directory).exports if not target or target in one.targets]
    rows = [
        {
            "number": one.number,
            "targets": list(one.targets),
            "first_seqno": one.base.seqno + 1,
            "last_seqno": one.last_seqno,
            "wall_ns": one.wall_ns,
            "bytes": one.bytes,
            "file": one.file,
        }
        for one in found
    ]
    emit(
        rows,
        columns(
            [
                str(one.number),
                f"for {', '.join(one.targets)}",
                _brings(one.base.seqno + 1, one.last_seqno, is_receipt=False),
                _size(one.bytes),
                utc(one.wall_ns),
                one.file,
            ]
            for one in found
        )
        or ["no packet was made here"],
    )


@packet.command()
@click.option("--to", "target", metavar="PEER", required=True, shell_complete=peers, help="Whom it was for.")
@click.option("--number", type=int, metavar="N", help="The packet that is lost; `packet exports` lists them.")
@click.option("--receipt", metavar="FILE", help="A packet of the peer's own, which says what it has.")
def recover(target: str, number: int | None, receipt: str | None) -> None:
    """Have the next export to PEER begin where a packet did that is lost; never before what the peer has confirmed."""
    from replicate.transfer.packet.epochs import Epochs
    from replicate.transfer.packet.epochs_file import change_epochs, read_epochs
    from replicate.transfer.packet.judge_packets import look, take_words

    if (number is None) == (receipt is None):
        raise UsageError("say which packet is lost, or what the peer has", do="--number N, or --receipt FILE")
    opened = open_instance()
    opened.peer(target)
    if receipt is not None:
        inbox = look(opened, [Path(_one(receipt))], time.time())
        errors: list[ReplicateError] = list(inbox.refused)
        before = read_epochs(opened.consumers_directory)
        heard, refused = take_words(opened, inbox.packets, before.waiting, is_newest=True, lacking=before.lacking)
        errors += [error for _, error in refused]
        if errors:
            raise errors[0]
        if heard != (target,):
            raise UsageError(f"the packet is not of {target}", where=receipt, do="Name one that it has made")

    def changed(known: Epochs) -> Epochs:
        return known.confirmed(target) if number is None else known.recovered(target, number)

    after = change_epochs(opened.consumers_directory, changed).of(target).known
    begins = 0 if after is None else after.seqno
    next_ = f"next: replicate -i {opened.named} packet export --to {target}"
    emit({"peer": target, "seqno": begins}, [f"the next packet for {target} begins after transaction {begins}", next_])
