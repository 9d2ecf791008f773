"""`replicate watch`: the street of instances, live on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replicate.cli.common import VerbOfSeveral, emit, instance_names, span_s, wants_json
from replicate.cli.watched_instances import pages_options, views_of
from replicate.errors import PeerUnreachableError

if TYPE_CHECKING:
    from replicate.cli.screen import Watching
    from replicate.seeing.instance_view import InstanceLooker, SeenView
    from replicate.seeing.picture import InstancePicture
    from replicate.seeing.terminal import ScreenLine


FIRST_LOOK_S = 2.0
"""So long nothing is drawn: what was not looked at yet would be drawn as what cannot be read."""


def _past(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    return span_s(value, least_s=1.0, most_s=7 * 86_400.0)


@click.command(cls=VerbOfSeveral)
@click.option("--once", is_flag=True, help="Print it once, for a script, and end: exit code 1 if something is wrong.")
@click.option(
    "--past", "past_s", default="15m", show_default=True, callback=_past, metavar="PERIOD",
    help="How long ago the curves begin: 90s, 15m, 2h, 7d.",
)  # fmt: skip
@pages_options
def watch(once: bool, past_s: float, pages_ca: Path | None, pages_token_file: Path | None) -> int:
    """Show the street of each instance live: positions, rates, lag and backlog as curves, what happened, what to do.

    Keys: q quits, f freezes, + and - change the time of the curves, tab shows one instance after another, ? says all.
    An INSTANCE may be one that replicate web shows on another host: https://HOST:PORT#NAME, or all without #NAME. With
    --once, or --json, it is printed once. Rates are then those of the daemons' last lines of statistics.
    """
    from replicate.cli.screen import check_terminal

    is_live = not once and not wants_json()
    if is_live:
        check_terminal()
    views = views_of(instance_names(), past_s=past_s, ca=pages_ca, token_file=pages_token_file)
    if is_live:
        _live(views, past_s)
        return 0
    return _once(views, past_s)


def _once(views: Sequence[SeenView], past_s: float) -> int:
    from replicate.seeing.terminal import columns_of, screen, text_of_line

    width = shutil.get_terminal_size().columns
    for view in views:
        view.look()
    pictures = [view.picture(past_s=past_s, columns=columns_of(width)) for view in views]
    emit(pictures, map(text_of_line, screen(pictures, width, ascii_only=_is_ascii())))
    if any(picture.error for picture in pictures):
        return PeerUnreachableError.exit_code
    return 1 if any(picture.is_wrong for picture in pictures) else 0


def _is_ascii() -> bool:
    """Whether the output takes no characters but these."""
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf16", "utf32")


def _live(views: Sequence[SeenView], past_s: float) -> None:
    from replicate.cli.screen import Watching, watch
    from replicate.seeing.instance_view import InstanceLooker

    lookers = [InstanceLooker(view) for view in views]
    seen: list[int] = []

    def has_changed() -> bool:
        now = [looker.looks for looker in lookers]
        is_new, seen[:] = now != seen, now
        return is_new

    screen = _Screen(lookers)
    patience_s = time.monotonic() + FIRST_LOOK_S
    try:
        while not all(looker.looks for looker in lookers) and time.monotonic() < patience_s:
            time.sleep(0.01)
        watch(Watching(len(lookers), past_s), screen.draw, has_changed=has_changed)
    finally:
        for looker in lookers:
            looker.close()


class _Screen:
    """The lines for what is chosen."""

    def __init__(self, lookers: Sequence[InstanceLooker]) -> None:
        self._lookers = lookers
        self._frozen: list[InstancePicture] = []

    def draw(self, watching: Watching, width: int) -> Sequence[ScreenLine]:
        """Frozen: as it was when it was frozen, whatever happens meanwhile."""
        from replicate.cli.screen import HELP, takes_unicode
        from replicate.seeing.terminal import ScreenPiece, columns_of, screen

        if watching.is_asking:
            return [(ScreenPiece(line),) for line in HELP]
        if not watching.is_frozen:
            self._frozen.clear()
        if not self._frozen:
            count = columns_of(width)
            self._frozen = [one.view.picture(past_s=watching.past_s, columns=count) for one in self._lookers]
        pictures = self._frozen if watching.only is None else [self._frozen[watching.only]]
        return list(screen(pictures, width, ascii_only=not takes_unicode(), now_us=time.time_ns() // 1000))
