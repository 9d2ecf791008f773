"""The whole street over a bad network: real daemons, whose connection goes through `BadNetwork`, with quick deadlines.

Guarantees: `bad_street` gives a street that streams, and ends everything after the test.
Leaves to others: what a test breaks.
"""

from __future__ import annotations

import random
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

import replicate
from tests.harness.bad_network import PIECE_BYTES, BadNetwork
from tests.harness.command_line import in_environment
from tests.harness.street import Street
from tests.harness.waiting import PATIENCE_S, wait_until

HEARTBEAT_S: Final = 0.5
DEAD_AFTER_S: Final = 2.0
NOTICED_WITHIN_S: Final = DEAD_AFTER_S + 2 * HEARTBEAT_S + 60.0
"""A silent peer, or one that does not hear us, is noticed within `dead_after_s` and two periods; the rest is a busy
machine's."""
TRIES: Final = 5
SETTINGS: Final = f"""
    [journal]
    durability = "interval"
    pool_bytes = 1048576
    [source]
    heartbeat_period_s = {HEARTBEAT_S}
    dead_after_s = {DEAD_AFTER_S}
    hard_period_s = 0.1
    soft_period_s = 0.3
    connect_timeout_s = 2.0
    metrics_listen = "127.0.0.1:0"
    [receiver]
    pool_bytes = 4194304
    heartbeat_period_s = {HEARTBEAT_S}
    dead_after_s = {DEAD_AFTER_S}
    hello_timeout_s = 2.0
    metrics_listen = "127.0.0.1:0"
    [update]
    metrics_listen = "127.0.0.1:0"
"""


class BadStreet(Street):
    """A street whose Source Server connects to `network`."""

    network: BadNetwork
    lines_before = 0
    ends_before: dict[str, int] = {}

    def start(self, *, running: bool = True) -> BadStreet:
        """Everything, with the network between; `running`: up to a stream that runs."""
        self.start_receiver()
        self.network = BadNetwork(self.port())
        self.on(self.primary, "peer", "add", "secondary", f"127.0.0.1:{self.network.port}")
        self.on(self.secondary, "seed", "--from", self.primary)
        if running:
            self.start_source()
            self.start_update()
            self.wait_for_stream()
        return self

    def wait_for_stream(self, timeout_s: float = PATIENCE_S) -> None:
        wait_until(lambda: self.source().get("state") == "sending", timeout_s=timeout_s, what="the source streams")

    def close(self) -> None:
        if hasattr(self, "network"):
            self.network.close()
        super().close()

    def source(self) -> dict[str, Any]:
        """The facts of the Source Server."""
        return dict(self.daemon(self.primary, "source-secondary")["facts"])

    def begin(self) -> None:
        """A test begins: everything is well, and what follows counts from here."""
        network = self.network
        network.mangle, network.mangle_back = None, None
        network.bytes_per_s, network.piece_bytes = 0.0, PIECE_BYTES
        network.is_refusing, network.target_port = False, self.port()
        network.heal()
        self.applied(self.insert())
        self.wait_for_stream()
        self.lines_before = len(network.lines) - 1
        self.ends_before = {}
        self.ends_before = {side.name: len(self.ends(side)) for side in (self.primary, self.secondary)}

    def lives(self, attempt: Callable[[], None]) -> None:
        """What `attempt` does ends no connection. A machine that stands still for longer than a silent peer is given
        ends it, too: so it is tried again, and what is a fault of ours fails each time."""
        for left in reversed(range(TRIES)):
            self.begin()
            try:
                attempt()
                assert self.new_lines() == 1, "the connection ended"
                return
            except AssertionError:
                if not left or self.new_lines() == 1:
                    raise

    def new_lines(self) -> int:
        """Connections since the test began, with the one that was there."""
        return len(self.network.lines) - self.lines_before

    def ends(self, instance: Path) -> list[str]:
        """The errors with which a side's connections have ended since the test began, oldest first."""
        lines = self.log(instance, self.server(instance))
        errors = [str(line.get("error", "")) for line in lines if line["event"] == "connection closed"]
        return errors[self.ends_before.get(instance.name, 0) :]

    def server(self, instance: Path) -> str:
        """The name of a side's server."""
        return "source-secondary" if instance == self.primary else "receiver"

    def duplicates(self) -> int:
        """Transactions that came to the Update Process twice, since it was started."""
        return int(self.figure(self.secondary, "skipped_total", daemon="update"))

    def figure(self, instance: Path, name: str, *, daemon: str = "", **labels: str) -> float:
        """The sum of a metric of a side's server (or `daemon`) over the labels given; 0.0 when there is none."""
        daemon = daemon or self.server(instance)
        address = self.daemon(instance, daemon)["facts"]["metrics_listen"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"dualsite_{name}" and labels.items() <= sample.labels.items()
        )

    def insert(self, count: int = 1, size: int = 100) -> int:
        """Commit `count` rows of `size` random bytes, one a transaction; the last seqno."""
        dice = random.Random(7)
        with in_environment(self.environment):
            connection = replicate.connect(self.primary, timeout=60)
            try:
                for number in range(count):
                    with connection:
                        connection.execute("INSERT INTO loose VALUES (?, ?)", (number, dice.randbytes(size)))
                assert connection.last_seqno is not None
                return connection.last_seqno
            finally:
                connection.close()

    def applied(self, seqno: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the secondary has it."""
        self.on(self.secondary, "wait", "--seqno", str(seqno), "--timeout", str(timeout_s))


@contextmanager
def bad_street(directory: Path, *, running: bool = True, settings: str = SETTINGS) -> Iterator[BadStreet]:
    """A street over a bad network, which is well as yet."""
    made = BadStreet(directory, settings=settings)
    try:
        made.build()
        yield made.start(running=running)
    finally:
        made.close()
