"""`replicate source filter` and `replicate receiver filter`: on, off, show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from replicate.cli.common import emit
from replicate.daemon.last_run import start_again
from replicate.daemon.orders import give
from replicate.errors import ConfigurationError, NotFoundError
from replicate.filters.switch import ORDER, SHOW, WISHES

if TYPE_CHECKING:
    from replicate.instance.instance import Instance

filter_wish = click.argument("wish", type=click.Choice(WISHES), metavar="on|off|show")


def tell_filter(opened: Instance, daemon: str, wish: str, configured: str) -> None:
    """Give a server the order, and print how its filter is then. `configured`: by the settings, for one that does not
    run. NotFoundError, ConfigurationError, and what the server says."""
    told = give(opened, daemon, f"{ORDER} {wish}")
    if told is None and wish != SHOW:
        if not configured:
            section = daemon.partition("-")[0]
            raise ConfigurationError(
                f"{daemon} has no filter", where=str(opened.path), do=f"Set {section}.filter, then start it"
            )
        raise NotFoundError(
            f"{daemon} does not run, and a filter is turned on or off where it runs",
            where=str(opened.path),
            do=f"Start it: {start_again(opened, daemon)}",
        )
    if told is None:
        told = {"filter": configured or None, "is_on": False, "identity": None, "error": None}
        state = "not running"
    else:
        state = "on" if told["is_on"] else "off"
    name = told["identity"] or told["filter"]
    lines = [f"{daemon}: no filter" if name is None else f"{daemon}: {state}: {name}"]
    if told["error"]:
        lines.append(f"  {told['error']}")
    emit({"daemon": daemon, **told}, lines)
