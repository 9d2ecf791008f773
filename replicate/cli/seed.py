"""`replicate seed`: bring this secondary up from a live primary, over the connection or by a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import VerbCommand, emit, open_instance
from replicate.cli.completion_words import instances, partitions, peers, regions
from replicate.daemon.last_run import start_again

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from replicate.transfer.seed.install import Seeded

GOES_ON = "writers go on"


@click.command(cls=VerbCommand)
@click.option(
    "--from",
    "primary",
    metavar="INSTANCE",
    shell_complete=instances,
    help="A primary on this host (directory or name); or a remote one's name.",
)
@click.option("--from-file", metavar="FILE", help="A seed file that the primary has made for this secondary.")
@click.option("--to-file", metavar="FILE", help="On the primary: make such a file.")
@click.option(
    "--for",
    "consumer",
    metavar="SECONDARY",
    shell_complete=peers,
    help="With --to-file: the registered peer that it is for.",
)
@click.option(
    "--forget", metavar="SECONDARY", shell_complete=peers, help="On the primary: give up the seed that was made for it."
)
@click.option(
    "--region",
    "names",
    metavar="NAME",
    multiple=True,
    shell_complete=regions,
    help="Only this region (repeatable); the others go on meanwhile.",
)
@click.option(
    "--partition",
    "parts",
    metavar="NAME",
    multiple=True,
    shell_complete=partitions,
    help="Only the rows of this partition (repeatable), which is wanted here; the others go on meanwhile.",
)
@click.option("--restart", is_flag=True, help="Replace what this secondary holds, or FILE, and begin again.")
def seed(
    primary: str | None,
    from_file: str | None,
    to_file: str | None,
    consumer: str | None,
    forget: str | None,
    names: tuple[str, ...],
    parts: tuple[str, ...],
    restart: bool,
) -> None:
    """Copy the primary's regions at one sequence number, while its writers go on.

    Without --from and --from-file the source that is connected sends them; when that is interrupted, the same command
    goes on where it was. With --region, or --partition, the Update Process stays up, and the others go on.
    """
    from replicate.errors import UsageError

    asked = {"--from": primary, "--from-file": from_file, "--to-file": to_file, "--forget": forget}
    given = [name for name, value in asked.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} together make no sense", do="Give one of them")
    if bool(to_file) != bool(consumer):
        raise UsageError(
            "--to-file and --for belong together", do="replicate -i INSTANCE seed --to-file FILE --for SECONDARY"
        )
    if forget and names:
        raise UsageError("--forget and --region together make no sense", do="Give one of them")
    if parts and (forget or names or (restart and not to_file)):
        word = "--forget" if forget else "--region" if names else "--restart"
        raise UsageError(f"--partition and {word} together make no sense", do="Give one of them")
    opened = open_instance()
    if restart and not to_file and not forget and not names:
        _keep_lost(opened)
    if forget:
        _forget(opened, forget)
    elif to_file and consumer:
        _to_file(opened, Path(to_file).absolute(), consumer, restart, names, parts)
    elif parts:
        _load(opened, parts, primary, from_file)
    elif names:
        _alone(opened, tuple(dict.fromkeys(names)), primary, from_file, restart)
    elif from_file:
        _from_file(opened, Path(from_file).absolute(), restart)
    elif primary and _is_here(primary):
        _from_instance(opened, primary, restart)
    else:
        _over_connection(opened, primary, restart)


def _keep_lost(opened: Instance) -> None:
    """UndeliveredError when a demoted primary still has what nobody else has, and no lost file: a seed replaces it. One
    that is being seeded has answered for that."""
    from replicate.door.recovery.opening import is_being_seeded
    from replicate.lost.keep import keep_lost_of
    from replicate.lost.peers_lack import Owner

    if is_being_seeded(opened):
        return
    owner = Owner.of(opened)
    if owner.was_demoted:
        again = f"replicate -i {opened.named} rollback --to N"
        keep_lost_of(owner, cause="seed --restart", again=again, force=False)


def _forget(opened: Instance, consumer: str) -> None:
    from replicate.transfer.seed.make import forget_seed

    held = forget_seed(opened, consumer)
    what = f"no seed is on its way to {consumer}" if held is None else f"the seed at seqno {held} is given up"
    emit({"consumer": consumer, "seqno": held}, [what])


def _is_here(primary: str) -> bool:
    """A path is always an instance here; a name is one if it exists."""
    from replicate.instance.instance import FILE_NAME
    from replicate.instance.location import resolve_instance

    path = resolve_instance(primary)
    return path.name != primary or (path / FILE_NAME).exists()


def _over_connection(opened: Instance, source_name: str | None, restart: bool) -> None:
    from replicate.cli.progress import seeding
    from replicate.transfer.seed.request import seed_over_connection

    with seeding(GOES_ON) as told:
        seeded = seed_over_connection(opened, source_name, restart=restart, told=told)
    _say(opened, seeded)


def _from_instance(opened: Instance, primary: str, restart: bool) -> None:
    from replicate.cli.progress import seeding
    from replicate.instance.location import resolve_instance
    from replicate.transfer.seed.direct import seed_from_instance

    with seeding(GOES_ON, "copying region") as told:
        seeded = seed_from_instance(opened, resolve_instance(primary), restart=restart, progress=told)
    _say(opened, seeded)


def _from_file(opened: Instance, path: Path, restart: bool) -> None:
    from replicate.cli.progress import seeding
    from replicate.transfer.seed.install import install_file

    with seeding("", "installing region") as told:
        seeded = install_file(opened, path, restart=restart, progress=told)
    _say(opened, seeded, f"or, where no line leads here: replicate -i {opened.named} packet import DIR")


def _alone(opened: Instance, names: tuple[str, ...], primary: str | None, from_file: str | None, restart: bool) -> None:
    from replicate.cli.progress import seeding
    from replicate.instance.instance import Instance
    from replicate.instance.location import resolve_instance
    from replicate.transfer.seed import some_regions
    from replicate.transfer.seed.request import regions_over_connection

    if from_file:
        with seeding("", "installing region") as told:
            seeded = some_regions.install_alone(opened, Path(from_file).absolute(), names, restart=restart, told=told)
    elif primary and _is_here(primary):
        source = Instance.open(resolve_instance(primary))
        with seeding(GOES_ON, "copying region") as told:
            seeded = some_regions.seed_alone(source, opened, names, restart=restart, told=told)
    else:
        with seeding(GOES_ON) as told:
            seeded = regions_over_connection(opened, primary, names, restart=restart, told=told)
    what = f"seeded at seqno {seeded.seqno}, and level with the others: {', '.join(names)} ({seeded.pages} pages)"
    emit(seeded, [what, *_kept(seeded)])


def _load(opened: Instance, names: tuple[str, ...], primary: str | None, from_file: str | None) -> None:
    from replicate.admin.subscriptions import numbers_of
    from replicate.cli.progress import seeding
    from replicate.instance.instance import Instance
    from replicate.instance.location import resolve_instance
    from replicate.transfer.seed import partition
    from replicate.transfer.seed.request import partitions_over_connection

    numbers = numbers_of(opened, names)
    with seeding(GOES_ON) as told:
        if from_file:
            loaded = partition.load_from_file(opened, Path(from_file).absolute(), numbers, told=told)
        elif primary and _is_here(primary):
            source = Instance.open(resolve_instance(primary))
            loaded = partition.load_from_instance(source, opened, numbers, told=told)
        else:
            loaded = partitions_over_connection(opened, primary, numbers, told=told)
    what = f"{', '.join(loaded.partitions)}: here, and level with the others at seqno {loaded.held_from}"
    emit(loaded, [f"{what} (the copy was of {loaded.seqno}; {loaded.tables} tables)"])


def _to_file(
    opened: Instance, path: Path, consumer: str, restart: bool, names: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    from replicate.admin.subscriptions import numbers_of
    from replicate.cli.progress import seeding
    from replicate.transfer.seed.make import make_seed

    numbers = numbers_of(opened, parts) if parts else ()
    with seeding(GOES_ON, "copying region") as told:
        made = make_seed(opened, consumer, path, replace=restart, progress=told, regions=names, partitions=numbers)
    is_some = bool(names or numbers)
    kept = "of what comes after, the journal there has all" if is_some else "the journal after it is kept until "
    given = "".join([*(f" --region {name}" for name in names), *(f" --partition {number}" for number in numbers)])
    emit(
        made,
        [
            f"seed of {', '.join(made.regions)} at seqno {made.seqno} ({made.pages} pages, {made.bytes} bytes): {path}",
            kept if is_some else f"{kept}{consumer} has begun there",
            f"next, on {consumer}: replicate -i {consumer} seed --from-file FILE{given}",
        ],
    )


def _say(opened: Instance, seeded: Seeded, *more: str) -> None:
    what = f"seeded at seqno {seeded.seqno}: {', '.join(seeded.regions)} ({seeded.pages} pages)"
    emit(seeded, [what, *_kept(seeded), f"next: {start_again(opened, 'update')}", *more])


def _kept(seeded: Seeded) -> list[str]:
    return [
        f"kept: {path}, a plain database of the tables in NONE, whose rows no seed has" for path in seeded.kept_back
    ]
