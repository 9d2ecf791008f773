"""`replicate web`: the street of instances as a page, for a browser."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replicate.cli.common import VerbOfSeveral, emit, instance_names
from replicate.cli.watched_instances import pages_options, token_in, views_of
from replicate.errors import UsageError

if TYPE_CHECKING:
    from replicate.seeing.instance_view import SeenView
    from replicate.settings.load import Address
    from replicate.web.request import PageGuard

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
@pages_options
def web(
    listen: str, token_file: Path | None, hosts: tuple[str, ...], pages_ca: Path | None, pages_token_file: Path | None
) -> None:
    """Serve a page that shows the street of each instance live: figures, curves, events, findings with their commands.

    An INSTANCE may be one that such a page of another host shows: https://HOST:PORT#NAME, or all of it without #NAME.
    It changes nothing, shows no row, and asks no host but those for anything. On loopback anybody of this machine may
    look. Elsewhere it speaks TLS with the certificate of the first instance of this host, to those that show a
    certificate of the same CA, or the token. It ends by Ctrl-C or SIGTERM.
    """
    from replicate.web.server import check_page

    check_page()
    import trio

    from replicate.seeing.page_client import PORT_USUAL, is_page
    from replicate.seeing.picture_json import PAST_USUAL_S
    from replicate.settings.load import parse_address

    address = parse_address(listen, where=WHERE, default_port=PORT_USUAL)
    names = instance_names()
    views = views_of(names, past_s=PAST_USUAL_S, ca=pages_ca, token_file=pages_token_file)
    guard, context = _guarded(address, [one for one in names if not is_page(one)], token_file, hosts)
    if trio.run(_serve, str(address), views, guard, context) == signal.SIGINT:
        raise KeyboardInterrupt


def _guarded(
    address: Address, own: Sequence[str], token_file: Path | None, hosts: Sequence[str]
) -> tuple[PageGuard, Any]:
    """Who may see it, and the TLS context; None on loopback."""
    from replicate.web.request import PageGuard

    token = "" if token_file is None else token_in(token_file)
    host = f"[{address.host}]" if ":" in address.host else address.host
    names = {host.lower(), *(name.lower() for name in hosts)}
    if address.is_loopback:
        return PageGuard(names | {"localhost", "127.0.0.1", "[::1]"}, token), None
    from replicate.instance.instance import Instance
    from replicate.security.identity import for_browsers
    from replicate.security.tls import require_identity
    from replicate.security.tls_files import TlsFiles

    if not own:
        raise UsageError(
            f"{address} is not on loopback, and there is no instance of this host whose certificate would be shown",
            do="Name one, too: -i INSTANCE; or listen on 127.0.0.1",
        )
    opened = Instance.open(own[0], needs=("tls",))
    files = TlsFiles.of(opened.path, opened.config.tls)
    identity = require_identity(files, opened.name, where=WHERE, wanted_for=address)
    return PageGuard(names, token, wants_certificate=True), for_browsers(identity)


async def _serve(listen: str, views: Sequence[SeenView], guard: PageGuard, context: Any) -> int:
    """The signal that has ended it."""
    import trio

    from replicate.daemon.daemon import notify, watchdog_period_s
    from replicate.daemon.listening import listen as open_listeners
    from replicate.seeing.instance_view import InstanceLooker
    from replicate.web.server import PageServer

    listeners, address = await open_listeners(listen, where=WHERE)
    lookers = [InstanceLooker(view) for view in views]
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
