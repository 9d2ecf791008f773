"""`replicate region add|list|move|release|plain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import LOOKS, Noun, columns, emit, open_instance

if TYPE_CHECKING:
    from replicate.instance.instance import Instance


@click.group(cls=Noun)
def region() -> None:
    """Make a SQLite database a region of this instance, or give it back."""


@region.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--name", help="The region's name; the file's name without its ending if not given ('main' for the first)."
)
def add(path: Path, name: str | None) -> None:
    """Make the existing SQLite database at PATH a region, in place."""
    from replicate.admin.regions import add_region

    opened = open_instance()
    added = add_region(opened, path.absolute(), name=name or ("main" if not opened.regions else path.stem))
    emit(
        added,
        [
            f"region {added.name}: {added.path}",
            f"in the application: replicate.connect({str(opened.path)!r}, {added.name!r})",
            *(
                f"next, on {peer}, which applies nothing more without this region: replicate -i {peer} update stop, "
                f"then replicate -i {peer} seed --restart"
                for peer in _begun(opened)
            ),
        ],
    )


def _begun(opened: Instance) -> list[str]:
    """The peers that hold what the regions were before: a seed brings them all regions, and nothing else does."""
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
    emit(opened.regions, columns((r.name, r.path) for r in opened.regions))


@region.command()
@click.argument("name")
@click.argument("path", metavar="NEW_PATH", type=click.Path(path_type=Path))
def move(name: str, path: Path) -> None:
    """Tell the instance where the file of region NAME is now. Move it, with its -wal, before that."""
    from replicate.admin.moving import move_region

    moved = move_region(open_instance(), name, path.absolute())
    emit(moved, [f"region {moved.name}: {moved.path}"])


@region.command()
@click.argument("name")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0), default=60.0, show_default=True, metavar="SECONDS")
@click.option(
    "--force",
    is_flag=True,
    help="Do not finish anything first: for an instance whose journal can not be read, or whose region is lost (what "
    "lies in its place is left as it is).",
)
def release(name: str, timeout_s: float, force: bool) -> None:
    """Finish what was received, remove our bookkeeping, and leave plain SQLite."""
    from replicate.admin.release import release_region

    opened = open_instance()
    path = opened.region(name).path

    def finish() -> int:
        from update_process.process import finish_received

        return finish_received(opened, timeout_s=timeout_s)

    finishing = finish if opened.role == "secondary" and not force else None
    left = release_region(opened, name, timeout_s=timeout_s, finish=finishing, force=force)
    found = f"{path} was left as it is: {left}" if left else f"{path} is plain SQLite again"
    emit({"released": name, "path": path, "left": left}, [f"region {name} released: {found}"])


@region.command()
@click.argument("path", metavar="COPY", type=click.Path(path_type=Path))
def plain(path: Path) -> None:
    """Make a copy of a region (a backup of it) plain SQLite, so that anybody may write to it."""
    from replicate.admin.release import release_copy

    release_copy(path.absolute())
    emit({"plain": path.absolute()}, [f"{path} is plain SQLite"])
