"""admin/joining.py: one more supplier by one command, killed after each step; on one host, and from another one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.admin.join_plan import JoinStep
from replicate.admin.joining import supplier_if_here, wish_of
from replicate.errors import NotFoundError, UsageError
from replicate.settings.load import Address
from tests.harness import fork_server
from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SCHEMA = "CREATE TABLE ta (id INTEGER PRIMARY KEY, v); CREATE TABLE tb (id INTEGER PRIMARY KEY, v);"


class JoinStreet(Street):
    """A supplier without daemons, in a home of its own; the other one is not made yet."""

    def build(self) -> JoinStreet:
        self.depot = self.directory / "depot"
        self.others = [self.depot]
        self.run("instance", "create", self.primary, "--role", "primary", "--name", "shop")
        self._set(self.primary)
        self.on(self.primary, "region", "add", self.database)
        self.on(self.primary, "partition", "create", "stock")
        self.on(self.primary, "partition", "assign", "stock", "tb")
        self.on(self.primary, "instance", "convert", "--role", "supplier")
        self.network = json.loads(self.on(self.primary, "--json", "instance", "show").stdout)["network"]
        return self

    def join(self, *words: str | Path) -> subprocess.Popen[str]:
        """The command as a process; what it starts is forked, too."""
        own = ["-m", "replicate.cli.main", "-i", str(self.depot), "replica", "join"]
        process = fork_server.popen(
            [sys.executable, *own, *map(str, words)],
            env=self.environment | fork_server.command(self.directory / "bin"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def is_joined(self) -> None:
        """Each writes what is its own, and the other one has it."""
        wait_until(
            lambda: not self.on(self.primary, "partition", "give", "stock", "depot", check=False).returncode,
            what="the supplier knows the new one",
        )
        wait_until(lambda: self.writer_of(2) == "depot", what="the new one writes")
        for site, statement in (
            (self.depot, "INSERT INTO tb VALUES (1, 'b')"),
            (self.primary, "INSERT INTO ta VALUES (1, 'a')"),
        ):
            process = self.python(
                "import sys, replicate\nc = replicate.connect(sys.argv[1])\nc.execute(sys.argv[2])\nc.commit()",
                str(site), statement,
            )  # fmt: skip
            self.finish([process])
        wait_until(
            lambda: "equal" in self.on(self.primary, "compare", "--with", self.depot, check=False).stdout, what="equal"
        )
        vectors = [self.vector(site) for site in (self.primary, self.depot)]
        wait_until(lambda: self.vector(self.primary) == self.vector(self.depot), what=f"equal vectors: {vectors}")

    def writer_of(self, number: int) -> str:
        listed = json.loads(self.on(self.depot, "--json", "partition", "list").stdout)
        return next((str(one.get("writer", "")) for one in listed if one["number"] == number), "")

    def vector(self, site: Path) -> dict[str, Any]:
        found = json.loads(self.on(site, "--json", "ruv").stdout)
        return {f"{one['name']}/{one['incarnation']}": one["last"] for one in found["origins"]}


@pytest.fixture
def street(tmp_path: Path) -> Iterator[JoinStreet]:
    made = JoinStreet(tmp_path, settings=QUICK, schema=SCHEMA)
    try:
        yield made.build()
    finally:
        made.close()


@pytest.mark.slow
def test_killed_after_each_step_it_ends_the_same(street: JoinStreet) -> None:
    listen, there = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    words = (street.primary, there, "--listen", listen)
    dry = street.on(street.depot, "replica", "join", *words, "--dry-run", check=False)
    assert dry.returncode == 1
    assert not street.depot.exists()
    assert dry.stdout.count("to do") == len(JoinStep)
    told = []
    for _ in range(len(JoinStep) + 1):
        process = street.join(*words)
        assert process.stdout is not None
        told.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not told[-1].startswith("depot: "):
            break
    steps = [line.removeprefix("depot: ").rstrip() for line in told[:-1]]
    # A step that a kill has interrupted is told of by the next call, or was done: none is told twice.
    assert steps == [one.value for one in JoinStep if one.value in steps]
    assert {JoinStep.CREATE.value, JoinStep.SEED.value} <= {*steps}
    assert street.on(street.depot, "replica", "join", *words).stdout.splitlines()[-1].endswith("PARTITION depot")
    assert "to do" not in street.on(street.depot, "replica", "join", *words, "--dry-run").stdout
    assert "stock    number 2" in street.on(street.depot, "partition", "list").stdout  # called as there
    street.is_joined()


@pytest.mark.slow
def test_what_is_to_be_done_on_another_host_is_told_and_waited_for(street: JoinStreet, tmp_path: Path) -> None:
    street.environment["REPLICATE_HOME"] = str(tmp_path / "here")  # where no shop is
    listen, there = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    process = street.join("shop", there, "--listen", listen, "--network", street.network)
    assert process.stdout is not None
    told = []
    while not told or "receiver start" not in told[-1]:
        told.append(process.stdout.readline())
        assert told[-1], told
    commands = [line.split() for line in told if line.startswith("  replicate -i shop ")]
    assert [words[3:5] for words in commands] == [["peer", "add"], ["source", "start"], ["receiver", "start"]]
    for words in commands:
        street.on(street.primary, *words[3:])
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    assert "depot is a supplier, and linked with shop" in output
    street.is_joined()
    again = street.on(street.depot, "replica", "join", "shop")
    assert "depot: " not in again.stdout


def test_words_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    made = wish_of("depot", "shop", listen="10.0.0.2:1", address="db2:2", there="db1")
    assert (made.name, made.supplier, made.address, made.there) == (
        "depot", "shop", Address("db2", 2), Address("db1", 7430),
    )  # fmt: skip
    assert supplier_if_here("shop") is None
    with pytest.raises(NotFoundError):
        wish_of("depot", str(tmp_path / "shop"))
    with pytest.raises(UsageError, match="'x' is not a UUID"):
        wish_of("depot", "shop", network="x")
