"""A street whose sites have parted: the primary was lost with transactions that nobody else has, and the other one took
over. Then the old primary comes back.

Guarantees: everything goes through commands; `street.primary` and `street.secondary` stay who they were first.
Leaves to others: how it goes back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import replicate
from tests.harness import command_line
from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street, assert_same_databases
from tests.harness.waiting import wait_until

SETTINGS = QUICK


@dataclass
class Parted:
    """`common`: the last transaction that both have. `lost`: how many the old primary has beyond it."""

    street: Street
    common: int = 0
    lost: int = 0

    @property
    def old(self) -> Path:
        return self.street.primary

    @property
    def new(self) -> Path:
        return self.street.secondary

    def write(self, instance: Path, *statements: str) -> int:
        """One transaction on one of the sites; its number."""
        with command_line.in_environment(self.street.environment):
            connection = replicate.connect(instance, timeout=60)
            try:
                for statement in statements:
                    connection.execute(statement)
                connection.commit()
                assert connection.last_seqno is not None
                return connection.last_seqno
            finally:
                connection.close()

    def part(self, lost: int = 3, more: int = 2) -> None:
        """The primary commits `lost` transactions alone, and is lost; the secondary takes over, and commits `more`."""
        street = self.street
        self.common = street.prove_equal()
        street.on(self.old, "source", "stop", check=False)
        for number in range(lost):
            self.write(self.old, f"INSERT INTO setting VALUES ('lost {number} of {self.common}', 1)")
        self.lost = lost
        for daemon in ("receiver", "update"):
            street.on(self.new, daemon, "stop")
        street.on(self.new, "promote", "--force")
        for number in range(more):
            self.write(self.new, f"INSERT INTO setting VALUES ('new {number} of {self.common}', 2)")

    def come_back(self, *options: str, serve: bool = True) -> None:
        """The old primary is made a secondary, and its daemons are started; the new one sends to it."""
        street, address = self.street, f"127.0.0.1:{free_port()}"
        street.on(self.old, "demote")  # a second time it says that it is one
        street.on(self.new, "peer", "add", "primary", address, "--replace", check=False)
        street.on(self.new, "peer", "add", "primary", address, check=False)
        if serve:
            street.on(self.old, "receiver", "start", "--listen", address, *options)
            street.on(self.old, "source", "start", "--peer", "secondary")  # passive: a service that stays enabled
        street.on(self.new, "source", "start", "--peer", "primary")

    def level(self) -> int:
        """Both sites have the same, with one more transaction; its number."""
        street = self.street
        last = self.write(self.new, "INSERT INTO audit VALUES ('level', 1)")
        street.follows(self.old, last)
        street.on(self.old, "compare", "--with", self.new)
        assert_same_databases(street.database, self.new / "regions" / "main.db")
        return last

    def files(self) -> list[Path]:
        """The lost files of the old primary."""
        return sorted(self.old.parent.glob(f"{self.old.name}-lost-*.jsonl"))

    def told(self, event: str, daemon: str = "receiver") -> list[dict[str, Any]]:
        """The lines of that event in a log of the old primary."""
        return [line for line in self.street.log(self.old, daemon) if line["event"] == event]

    def wait_told(self, event: str, count: int = 1) -> dict[str, Any]:
        """The last line of that event, when so many are there."""
        wait_until(lambda: len(self.told(event)) >= count, what=event, timeout_s=90)
        return self.told(event)[-1]


def carried(file: Path) -> list[tuple[str, int]]:
    """Origin and number of each transaction with data in a lost file."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:-1]]
    return [(line["origin"], line["origin_seqno"]) for line in lines if line["kind"] in ("TRANSACTION", "LARGE")]
