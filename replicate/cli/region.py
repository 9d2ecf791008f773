"""`replicate region add|list|move|release|plain`."""

from __future__ import annotations

from pathlib import Path

import click

from replicate.cli.common import LOOKS, Noun, columns, emit, open_instance


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
        ],
    )


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
