"""`replicate bench`: what this host can do, measured on two throw-away instances."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path

import click

from replicate.cli.common import VerbCommand, columns, emit, wants_json


@click.command(cls=VerbCommand)
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="On the disk to be measured; a directory is made there, and removed [the current one].",
)
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=click.FloatRange(5, 3600),
    default=30.0,
    show_default=True,
    help="Time to measure; setting up takes some ten seconds more.",
)
def bench(directory: Path, seconds: float) -> None:
    """Measure commit cost, catch-up and latency on this host; needs no instance, and leaves nothing."""
    from replicate.bench.run import run_bench

    def told(text: str) -> None:
        if not wants_json() and sys.stderr.isatty():
            with suppress(OSError):  # the terminal has gone, and the measuring goes on
                click.echo(f"… {text}", err=True)

    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # daemons and directory go then, too
    try:
        found = run_bench(directory.absolute(), seconds=seconds, told=told)
    finally:
        signal.signal(signal.SIGTERM, previous)
    rows = [(one.what, f"{one.figure:,}", one.unit, one.beside) for one in found.figures]
    lines = columns([("", "figure", "unit", ""), *rows], numbers={1})
    facts = found.machine
    lines += ["", f"{facts['processor']}, {facts['cores']} cores, load {facts['load_before']} before; {found.took_s} s"]
    lines += [f"Python {facts['python']} ({facts['interpreter']})"]
    emit(found, [*lines, f"dualsite {found.version}, SQLite {facts['sqlite']}, settings {json.dumps(found.settings)}"])
