"""Seeing: a daemon is killed, a line is cut, a role changes; after how many seconds does the page show it?

Run: python -m tests.benchmarks.bench_seeing [--rounds N] [--table] [--directory DIR]

Real daemons with the heartbeats of a test, and two pages: one of both instances, and one that has the secondary from
the first one's address. Each is read as a browser reads it, from its stream of pictures; what a browser takes to draw
one comes on top. The clock runs from the moment at which it has happened: the process is gone, the connection is reset,
the command has begun. Prints one JSON line: seconds, the median and the worst of each. Nothing is asserted: that the
periods of those who write, look and push are below two seconds together, tests/replicate/web/test_server.py says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import report
from tests.benchmarks.street_bench import machine
from tests.harness.bad_street import BadStreet
from tests.harness.page import web_page
from tests.harness.waiting import wait_until

Shown = dict[str, Any]
PAGES: Final = ("own", "elsewhere")


class PageReader:
    """What a page pushes, as it comes."""

    def __init__(self, url: str) -> None:
        self._stream = urllib.request.urlopen(f"{url}events?past=60")
        self.newest: dict[str, Shown] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                if line.startswith(b"data: "):
                    self.newest = {one["name"]: one for one in json.loads(line[6:])["instances"]}
        except (OSError, ValueError):
            pass  # the page has ended


def mood(one: Shown, part: str) -> str:
    """Of a part of the street; "" where it is not there."""
    return next((p["mood"] for row in one["rows"] for p in row["parts"] if p["key"] == part), "")


def is_cut(one: Shown) -> bool:
    return any(way["is_line"] and way["mood"] == "error" for row in one["rows"] for way in row["ways"])


@contextmanager
def looked_at(directory: Path) -> Iterator[tuple[BadStreet, dict[str, PageReader]]]:
    street = BadStreet(directory)
    try:
        street.build().start()
        with web_page(street.environment, street.primary, street.secondary) as page:
            with web_page(street.environment, f"{page.url}#secondary") as other:
                yield street, {"own": PageReader(page.url), "elsewhere": PageReader(other.url)}
    finally:
        street.close()


def seconds(
    readers: dict[str, PageReader], happens: Callable[[], object], is_seen: Callable[[Shown], bool]
) -> dict[str, float]:
    """From when it has happened until each page shows it of the secondary."""
    happens()
    began_s, taken = time.monotonic(), dict[str, float]()

    def all_have() -> bool:
        for page, reader in readers.items():
            if page not in taken and is_seen(reader.newest["secondary"]):
                taken[page] = time.monotonic() - began_s
        return len(taken) == len(readers)

    wait_until(all_have)
    return taken


def one_round(street: BadStreet, readers: dict[str, PageReader]) -> Iterator[tuple[str, dict[str, float]]]:
    """Each thing once; the street is well again after it, but for the role."""

    def is_well() -> None:
        street.applied(street.insert())
        wait_until(
            lambda: all(
                reader.newest.get("secondary", {"mood": ""})["mood"] in ("well", "busy") for reader in readers.values()
            )
        )

    def cut() -> None:
        street.network.is_refusing = True
        for line in street.network.lines:
            line.close(reset=True)

    is_well()
    yield (
        "killed",
        seconds(readers, lambda: street.kill(street.secondary, "update"), lambda one: mood(one, "update") == "error"),
    )
    street.start_update()
    is_well()
    yield "cut", seconds(readers, cut, is_cut)
    street.network.is_refusing = False
    is_well()


def roles(street: BadStreet, readers: dict[str, PageReader]) -> dict[str, float]:
    street.on(street.secondary, "receiver", "stop")
    changing = threading.Thread(target=lambda: street.on(street.secondary, "promote", "--force"))
    taken = seconds(readers, changing.start, lambda one: one["role"] == "primary")
    changing.join()
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="of what can be undone; the role changes once a street")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    facts = machine()
    taken: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-seeing-", dir=arguments.directory) as directory,
        looked_at(Path(directory)) as (street, readers),
    ):
        for _ in range(arguments.rounds):
            for what, found in one_round(street, readers):
                for page, one in found.items():
                    taken.setdefault(f"{what}, {page}", []).append(one)
        for page, one in roles(street, readers).items():
            taken[f"role, {page}"] = [one]
    figure = {
        what: {"median": round(statistics.median(found), 2), "worst": round(max(found), 2), "times": len(found)}
        for what, found in taken.items()
    }
    line = report.line(
        "seeing", unit="s", figure=figure, settings={"rounds": arguments.rounds, "pages": list(PAGES)}, facts=facts
    )
    report.say([line], as_table=arguments.table)


if __name__ == "__main__":
    main()
