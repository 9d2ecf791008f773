"""`replicate seed`: bring this secondary up from a live primary, over the connection or by a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import Verb, emit, open_instance
from replicate.limits import MIB

if TYPE_CHECKING:
    from replicate.instance.instance import Instance
    from replicate.seed.install import Seeded

Told = Callable[[str, int, int], None]
LINE_PERIOD_S = 0.1


@click.command(cls=Verb)
@click.option(
    "--from", "primary", metavar="INSTANCE", help="A primary on this host (directory or name); or a remote one's name."
)
@click.option("--from-file", metavar="FILE", help="A seed file that the primary has made for this secondary.")
@click.option("--to-file", metavar="FILE", help="On the primary: make such a file.")
@click.option("--for", "consumer", metavar="SECONDARY", help="With --to-file: the registered peer that it is for.")
@click.option("--forget", metavar="SECONDARY", help="On the primary: give up the seed that was made for it.")
@click.option("--restart", is_flag=True, help="Replace what this secondary holds, or FILE, and begin anew.")
def seed(
    primary: str | None,
    from_file: str | None,
    to_file: str | None,
    consumer: str | None,
    forget: str | None,
    restart: bool,
) -> None:
    """Copy the primary's regions at one sequence number, while its writers go on.

    Without --from and --from-file the source that is connected sends them; when that is interrupted, the same command
    goes on where it was.
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
    opened = open_instance()
    if forget:
        _forget(opened, forget)
    elif to_file and consumer:
        _to_file(opened, Path(to_file).absolute(), consumer, restart)
    elif from_file:
        _from_file(opened, Path(from_file).absolute(), restart)
    elif primary and _is_here(primary):
        _from_instance(opened, primary, restart)
    else:
        _over_connection(opened, primary, restart)


def _forget(opened: Instance, consumer: str) -> None:
    from replicate.seed.make import forget_seed

    held = forget_seed(opened, consumer)
    what = f"no seed is on its way to {consumer}" if held is None else f"the seed at seqno {held} is given up"
    emit({"consumer": consumer, "seqno": held}, [what])


def _is_here(primary: str) -> bool:
    """A path is always an instance here; a name is one if it exists."""
    from replicate.instance.instance import FILE_NAME, resolve_instance

    path = resolve_instance(primary)
    return path.name != primary or (path / FILE_NAME).exists()


def _over_connection(opened: Instance, source_name: str | None, restart: bool) -> None:
    from replicate.seed.request import seed_over_connection

    with bar() as told:
        seeded = seed_over_connection(opened, source_name, restart=restart, told=told)
    _say(opened, seeded)


def _from_instance(opened: Instance, primary: str, restart: bool) -> None:
    from replicate.instance.instance import resolve_instance
    from replicate.seed.direct import seed_from_instance

    with bar() as told:
        seeded = seed_from_instance(opened, resolve_instance(primary), restart=restart, progress=told)
    _say(opened, seeded)


def _from_file(opened: Instance, path: Path, restart: bool) -> None:
    from replicate.seed.install import install_file

    with bar() as told:
        seeded = install_file(opened, path, restart=restart, progress=told)
    _say(opened, seeded)


def _to_file(opened: Instance, path: Path, consumer: str, restart: bool) -> None:
    from replicate.seed.make import make_seed

    with bar() as told:
        made = make_seed(opened, consumer, path, replace=restart, progress=told)
    emit(
        made,
        [
            f"seed of {', '.join(made.regions)} at seqno {made.seqno} ({made.pages} pages, {made.bytes} bytes): {path}",
            f"the journal behind it is kept until {consumer} has begun there",
            f"next, on {consumer}: replicate -i {consumer} seed --from-file FILE",
        ],
    )


def _say(opened: Instance, seeded: Seeded) -> None:
    what = f"seeded at seqno {seeded.seqno}: {', '.join(seeded.regions)} ({seeded.pages} pages)"
    emit(seeded, [what, f"next: replicate -i {opened.named} update start"])


@contextmanager
def bar() -> Iterator[Told]:
    """A progress bar on standard error, one for each label; nothing at all when that is no terminal, or no more."""
    if not sys.stderr.isatty():
        yield lambda _label, _done, _length: None
        return
    shown = _Bar()
    try:
        yield shown.told
    finally:
        shown.close()


class _Bar:
    """One click progress bar after the other."""

    def __init__(self) -> None:
        self._label = ""
        self._length = 0
        self._bar: Any = None
        self._next_s = 0.0
        self._began = (0.0, 0)
        self._is_gone = False

    def told(self, label: str, done: int, length: int) -> None:
        if self._is_gone:
            return
        try:
            self._draw(label, done, length)
        except OSError:  # the terminal: that ends the bar, not the seed
            self._is_gone = True

    def _draw(self, label: str, done: int, length: int) -> None:
        if (label, length) != (self._label, self._length):
            self.close()
            self._label, self._length = label, length
            if not length:
                click.echo(f"{label} ...", err=True)
                return
            self._began = (time.monotonic(), done)
            self._bar = click.progressbar(length=length, label=label, file=sys.stderr, item_show_func=str)
            self._bar.__enter__()
        now_s = time.monotonic()
        if self._bar is not None and (now_s >= self._next_s or done >= length):
            self._next_s = now_s + LINE_PERIOD_S
            self._bar.update(done - self._bar.pos, self._shown(now_s, done))

    def _shown(self, now_s: float, done: int) -> str:
        """How much, and how fast. What is received is counted in bytes, everything else in pages."""
        began_s, first = self._began
        rate = (done - first) / max(now_s - began_s, LINE_PERIOD_S)
        if self._label == "receiving":
            return f"{done / MIB:.1f} of {self._length / MIB:.1f} MiB, {rate / MIB:.1f} MiB/s"
        return f"{done} of {self._length} pages, {rate:.0f} a second"

    def close(self) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.__exit__(None, None, None)
            self._bar = None
