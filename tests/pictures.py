"""Makes the pictures of README and of the manual again, from a street that is well, behind and broken.

    .venv/bin/python -m tests.pictures

It needs Debian's package chromium, two minutes, and that nothing is at /tmp/sites. It writes deploy/pictures.
"""

from __future__ import annotations

import html
import shutil
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from replicate.seeing.instance_view import InstanceView
from replicate.seeing.terminal import Meaning, ScreenLine, columns_of, screen, text_of_line
from tests.harness.browser import Browser, browser
from tests.harness.checkout import ROOT
from tests.harness.command_line import in_environment
from tests.harness.page import web_page
from tests.harness.street import Street
from tests.harness.waiting import wait_until

PICTURES = ROOT / "deploy" / "pictures"
SITES = Path("/tmp/sites")
PAST_S = 60
WIDTH = 1080
COLUMNS = 116
SETTINGS = """
    [journal]
    pool_bytes = 1048576
    [source]
    statistics_period_s = 1
    heartbeat_period_s = 1
    hard_period_s = 0.5
    soft_period_s = 1
    [receiver]
    statistics_period_s = 1
    heartbeat_period_s = 1
    [update]
    statistics_period_s = 1
"""
COLOURS: dict[Meaning, str] = {
    "plain": "#d7dce2", "strong": "#ffffff", "faint": "#97a1ad", "off": "#97a1ad", "unknown": "#97a1ad",
    "well": "#6fd08a", "busy": "#74bff0", "warning": "#f0b357", "error": "#ff8a8f",
}  # fmt: skip


def terminal_picture(lines: Iterable[ScreenLine], columns: int) -> str:
    """Lines of a terminal as an SVG, in the reader's own font."""
    made, height, found = [], 19, list(lines)
    for number, line in enumerate(found):
        place = 0
        for piece in line:
            if piece.text.strip():
                x, y = 12 + place * 8.4, 24 + number * height
                wide = len(piece.text) * 8.4
                made.append(
                    f'<text x="{x:.1f}" y="{y}" textLength="{wide:.1f}" fill="{COLOURS[piece.meaning]}">'
                    f"{html.escape(piece.text).replace(' ', chr(0xA0))}</text>"
                )
            place += len(piece.text)
    wide, high = 24 + columns * 8.4, 20 + len(found) * height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" font-size="14" '
        'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#14171b"/>\n{chr(10).join(made)}\n</svg>\n'
    )


def take(eyes: Browser, state: str) -> None:
    """The page as it is now."""
    eyes.window(WIDTH, 800)
    height = int(eyes.run("document.documentElement.scrollHeight"))
    eyes.window(WIDTH, height)
    eyes.picture(PICTURES / f"page-{state}.png")


def main() -> int:
    """Make them; the exit code."""
    if SITES.exists():
        print(f"{SITES} is there; move it away first", file=sys.stderr)
        return 73
    SITES.mkdir()
    PICTURES.mkdir(exist_ok=True)
    street = Street(SITES, settings=SETTINGS)
    try:
        street.build().start()
        street.on(street.secondary, "compare", "--with", street.primary)
        street.writer(1, pause_s=0.02)
        with web_page(street.environment, street.primary, street.secondary) as page, browser(SITES) as eyes:
            views = [InstanceView(str(path)) for path in (street.primary, street.secondary)]
            eyes.window(WIDTH, 800)
            eyes.open(page.url)
            eyes.waits_for("document.querySelectorAll('.instance').length === 2")
            eyes.run(f"place.past = {PAST_S}; byId('past').value = {PAST_S}; listen()")
            begin = street.last_seqno(street.secondary)
            wait_until(lambda: street.last_seqno(street.secondary) > begin + 1500, what="a minute of writing")
            take(eyes, "well")
            with in_environment(street.environment):
                looked = 0

                def look() -> int:
                    nonlocal looked
                    for view in views:
                        view.look()
                    looked += 1
                    return looked

                wait_until(lambda: look() > 10 and views[0].picture(past_s=PAST_S).curves[-1].now.value, what="rates")
                pictures = [view.picture(past_s=PAST_S, columns=columns_of(COLUMNS)) for view in views[:1]]
            drawn = list(screen(pictures, COLUMNS))
            (PICTURES / "terminal.svg").write_text(terminal_picture(drawn, COLUMNS), encoding="utf-8")
            print("\n".join(map(text_of_line, drawn)))
            street.kill(street.secondary, "update", signal.SIGSTOP)
            written = street.last_seqno(street.primary)
            wait_until(lambda: street.last_seqno(street.primary) > written + 400, what="a backlog")
            eyes.waits_for("document.querySelectorAll('.findings li').length > 0")
            take(eyes, "backlog")
            street.kill(street.secondary, "update", signal.SIGCONT)
            street.kill(street.primary, "source-secondary")
            street.kill(street.secondary, "update")
            dead = "document.getElementById('instances').innerText.split('DAEMON_DEAD').length - 1"
            eyes.waits_for(f"{dead} === 2 && document.querySelectorAll('.way.line.error').length === 2")
            take(eyes, "broken")
    finally:
        street.close()
        shutil.rmtree(SITES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
