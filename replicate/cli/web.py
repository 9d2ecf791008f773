"""`replicate web`: the street of instances as a page, for a browser."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import VerbOfSeveral, emit, instance_names
from replicate.errors import ConfigurationError

if TYPE_CHECKING:
    from replicate.seeing.look import InstanceLooker, InstanceView
    from replicate.settings.load import Address
    from replicate.web.request import PageGuard

PERIOD_S = 0.5
WHERE = "--listen"


@click.command(cls=VerbOfSeveral)
@click.option(
    "--listen", default="127.0.0.1:7480", show_default=True, metavar="HOST:PORT",
    help="Where the page is; port 0 takes a free one. Elsewhere than on loopback it is TLS.",
)  # fmt: skip
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE",
    help="A file of mode 0600 with the token that a browser is asked for as a password.",
)  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name by which the page is reached, too.")
def web(listen: str, token_file: Path | None, hosts: tuple[str, ...]) -> None:
    """Serve a page that shows the street of each instance live: figures, curves, events, findings with their commands.

    It changes nothing, shows no row, and asks no other host for anything. On loopback anybody of this machine may look.
    Elsewhere it speaks TLS with the certificate of the first instance, to those that show a certificate of the same CA,
    or the token. It ends by Ctrl-C or SIGTERM.
    """
    from replicate.web.server import check_page

    check_page()
    import trio

    from replicate.seeing.look import InstanceView
    from replicate.settings.load import parse_address

    address = parse_address(listen, where=WHERE)
    views = [InstanceView(name) for name in instance_names()]
    guard, context = _guarded(address, views[0], token_file, hosts)
    if trio.run(_serve, listen, views, guard, context) == signal.SIGINT:
        raise KeyboardInterrupt


def _guarded(
    address: Address, first: InstanceView, token_file: Path | None, hosts: Sequence[str]
) -> tuple[PageGuard, Any]:
    """Who may see it, and the TLS context; None on loopback."""
    from replicate.web.request import PageGuard

    token = "" if token_file is None else _token(token_file)
    own = f"[{address.host}]" if ":" in address.host else address.host
    names = {own.lower(), *(name.lower() for name in hosts)}
    if address.is_loopback:
        return PageGuard(names | {"localhost", "127.0.0.1", "[::1]"}, token), None
    from replicate.instance.instance import Instance
    from replicate.security.identity import for_browsers
    from replicate.security.tls import require_identity
    from replicate.security.tls_files import TlsFiles

    opened = Instance.open(first.named, needs=("tls",))
    files = TlsFiles.of(opened.path, opened.config.tls)
    identity = require_identity(files, opened.name, where=WHERE, wanted_for=address)
    return PageGuard(names, token, wants_certificate=True), for_browsers(identity)


def _token(path: Path) -> str:
    from replicate.security.guarded_file import read_guarded
    from replicate.web.request import TOKEN_LEAST

    token = read_guarded(path, is_secret=True, what="the token").decode("ascii", "replace").strip()
    if len(token) < TOKEN_LEAST or not token.isascii() or not token.isprintable():
        raise ConfigurationError(
            f"the token has to be {TOKEN_LEAST} characters of ASCII at least, in one line",
            where=str(path),
            do=f"Make one: (umask 077; head -c 24 /dev/urandom | base64 >{path})",
        )
    return token


async def _serve(listen: str, views: Sequence[InstanceView], guard: PageGuard, context: Any) -> int:
    """The signal that has ended it."""
    import trio

    from replicate.daemon.daemon import notify, watchdog_period_s
    from replicate.daemon.listening import listen as open_listeners
    from replicate.seeing.look import InstanceLooker
    from replicate.web.server import PageServer

    listeners, address = await open_listeners(listen, where=WHERE)
    lookers: list[InstanceLooker] = [InstanceLooker(view, PERIOD_S) for view in views]
    url = f"http{'' if context is None else 's'}://{address}/"
    emit({"url": url, "instances": [view.name for view in views]}, [f"{', '.join(v.name for v in views)}: {url}"])
    sys.stdout.flush()
    notify(f"READY=1\nSTATUS={url}")
    ended_by = 0
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PageServer(lookers, guard, context).run, listeners)
            nursery.start_soon(_give_signs_of_life, watchdog_period_s())
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for number in signals:
                    ended_by = number
                    notify("STOPPING=1")
                    nursery.cancel_scope.cancel()
    finally:
        for looker in lookers:
            looker.close()
    return ended_by


async def _give_signs_of_life(period_s: float | None) -> None:
    """To systemd, where it wants some."""
    import trio

    from replicate.daemon.daemon import notify

    while period_s is not None:
        notify("WATCHDOG=1")
        await trio.sleep(period_s)
