"""`replicate region add|list|move|release|reindex|upgrade|plain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from replicate.cli.common import LOOKS, Noun, columns, confirm, emit, open_instance, waiting_option
from replicate.cli.completion_words import partitions, regions

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


timeout_option = waiting_option("How long to wait for applications' transactions.")


@click.group(cls=Noun)
def region() -> None:
    """Make a SQLite database a region of this instance, or give it back."""


@region.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--name",
    metavar="NAME",
    help="The region's name; the file's name without its ending if not given ('main' for the first).",
)
@click.option("--create", is_flag=True, help="Make an empty database at PATH first; nothing may be there yet.")
@click.option("--yes", is_flag=True, help="Do not ask about a database with rows, which the secondaries get by a seed.")
@click.option(
    "--partition",
    metavar="NAME",
    shell_complete=partitions,
    help="The partition of its tables [that of new tables: partition default].",
)
def add(path: Path, name: str | None, create: bool, yes: bool, partition: str | None) -> None:
    """Make the existing SQLite database at PATH a region, in place.

    The secondaries make one without rows themselves; one with rows waits there for a seed, and the others go on.
    """
    from replicate.admin.region_create import add_created_region
    from replicate.admin.regions import add_region
    from replicate.cli.progress import reading

    opened = open_instance()
    path, name = path.absolute(), name or ("main" if not opened.regions else path.stem)
    next_ = _announced(opened, path, name, create=create, yes=yes)
    with reading() as told:
        added = (add_created_region if create else add_region)(opened, path, name=name, told=told, partition=partition)
    emit(
        added,
        [
            f"region {added.name}: {added.path}",
            f"in the application: replicate.connect({str(opened.path)!r}, {added.name!r})",
            *next_,
        ],
    )


def _announced(opened: Instance, path: Path, name: str, *, create: bool, yes: bool) -> list[str]:
    """What it means for each secondary; asked for first, where it means a seed."""
    begun = _begun(opened) if opened.role == "primary" else []
    if not begun or any(entry.name == name for entry in opened.regions):
        return []
    from replicate.admin.regions import look_at_addition

    found = look_at_addition(opened, None if create else path, name)
    if not found.why:
        return [f"on {peer} it is made in the stream: nothing need be done there" for peer in begun]
    who, gets = ("secondaries", "get") if len(begun) > 1 else ("secondary", "gets")
    others = "one that has no other applies nothing until then" if found.stops else "the other regions go on"
    confirm(
        f"{path}: {found.why} (rows in all: {found.rows}). The {who} {', '.join(begun)} {gets} it by a seed; {others}",
        yes=yes,
    )
    if found.stops:
        return [
            f"next, on {peer} ({others}): replicate -i {peer} update stop, then replicate -i {peer} seed --restart, "
            f"then replicate -i {peer} update start"
            for peer in begun
        ]
    return [
        f"next, on {peer}, where it waits for its seed ({others}): replicate -i {peer} seed --region {name}"
        for peer in begun
    ]


def _begun(opened: Instance) -> list[str]:
    """The peers that hold what the regions were before: those that have none get all of them by their first seed."""
    from replicate.errors import DamagedError
    from replicate.instance.consumers import read_consumer

    begun = []
    for peer in opened.peers:
        try:
            known = read_consumer(opened.consumers_directory, peer.name)
        except DamagedError:  # `status` says so; the region is added all the same
            continue
        if known is not None and known.acknowledged_seqno:
            begun.append(peer.name)
    return begun


@region.command(name="list")
def list_() -> None:
    """List the regions."""
    opened = open_instance(LOOKS)
    rows = [(r.name, str(r.path)) for r in opened.regions]
    rows += [(name, "(not here: waits for its seed)") for name in opened.waiting]
    emit(opened.regions, columns(rows))


@region.command()
@click.argument("name", shell_complete=regions)
@click.argument("path", metavar="NEW_PATH", type=click.Path(path_type=Path))
def move(name: str, path: Path) -> None:
    """Tell the instance where the file of region NAME is now. Move it, with its -wal, before that."""
    from replicate.admin.region_move import move_region

    moved = move_region(open_instance(), name, path.absolute())
    emit(moved, [f"region {moved.name}: {moved.path}"])


@region.command()
@click.argument("name", shell_complete=regions)
@timeout_option
@click.option(
    "--force",
    is_flag=True,
    help="Also if a peer has not got all (what no peer has is written to a file first), if the journal cannot be "
    "read, or if the region is lost (what lies in its place is left as it is). What was received is not applied.",
)
def release(name: str, timeout_s: float, force: bool) -> None:
    """Finish what was received, remove our bookkeeping, and leave plain SQLite."""
    from replicate.admin.region_release import release_region

    opened = open_instance()
    path = opened.region(name).path

    def finish() -> int:
        from update_process.process import finish_received

        return finish_received(opened, timeout_s=timeout_s)

    finishing = finish if opened.role == "secondary" and not force else None
    released = release_region(opened, name, timeout_s=timeout_s, finish=finishing, force=force)
    left, kept = released.left, released.kept
    found = f"{path} was left as it is: {left}" if left else f"{path} is plain SQLite again"
    lacking = [f"region {one} was never here: it waits for its seed" for one in opened.waiting]
    lost = kept.facts() if kept else None
    emit(
        {"released": name, "path": path, "left": left, "lost": lost, "waiting": opened.waiting},
        [*(kept.lines() if kept else ()), f"region {name} released: {found}", *lacking],
    )


@region.command()
@click.argument("name", shell_complete=regions)
@click.option("--script", type=click.File(encoding="utf-8"), required=True, metavar="FILE", help="Statements of SQL.")
@timeout_option
def upgrade(name: str, script: TextIO, timeout_s: float) -> None:
    """Give a region of a secondary the schema that its filter speaks, with all daemons stopped.

    What was received is applied before. There is no way back to a transaction before it.
    """
    from replicate.admin.region_upgrade import upgrade_region

    opened = open_instance()

    def finish() -> int:
        from update_process.process import finish_received

        return finish_received(opened, timeout_s=timeout_s)

    made = upgrade_region(opened, name, script.read(), timeout_s=timeout_s, finish=finish)
    tables = ", ".join(made.tables) or "no table"
    emit(made, [f"region {name} upgraded after transaction {made.seqno}: {tables}"])


@region.command()
@click.argument("name", shell_complete=regions)
@click.argument("indexes", nargs=-1, metavar="[INDEX]...")
@click.option("--all", "every", is_flag=True, help="All indexes of the region.")
@timeout_option
def reindex(name: str, indexes: tuple[str, ...], every: bool, timeout_s: float) -> None:
    """Make indexes of a region again from its rows: those that status names as damaged (INDEX_DAMAGED), or the named.

    On a primary or a secondary, while the daemons run. Writers wait as long as one index takes. Nothing of it is
    replicated: the other site has indexes of its own.
    """
    from replicate.admin.reindexing import reindex_region

    made = reindex_region(open_instance(), name, indexes, every=every, timeout_s=timeout_s)
    emit({"region": name, "indexes": made}, [f"index {one} of region {name} was made again" for one in made])


@region.command()
@click.argument("path", metavar="COPY", type=click.Path(path_type=Path))
def plain(path: Path) -> None:
    """Make a copy of a region (a backup of it) plain SQLite, so that anybody may write to it."""
    from replicate.admin.region_release import release_copy

    release_copy(path.absolute())
    emit({"plain": path.absolute()}, [f"{path} is plain SQLite"])
