"""Suppliers and packets, by the commands alone: a network without any line, and one in which a site has none."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.errors import ConfigurationError, PacketGapError, ReplicateError
from tests.harness.ports import free_port
from tests.harness.supplier_street import AT_ONCE, NAMES, SCHEMA, SETTINGS, WRITER, SupplierStreet
from tests.harness.waiting import wait_until
from tests.replicate.cli.test_partition import said

SITES = ("shop", "depot", "island")


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shop, a depot and an island that write, each seeded by a file; nothing else than packets connects them."""
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stick").mkdir()
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    connection = apsw.Connection(str(tmp_path / "shop.db"))
    connection.execute(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, count INTEGER);"
        "CREATE TABLE note (id INTEGER PRIMARY KEY AUTOINCREMENT, text, author, UNIQUE (text))"
    )
    connection.close()
    said("instance", "create", "shop", "--role", "primary")
    said("-i", "shop", "region", "add", "shop.db")
    for name, table in (("stock", "item"), ("notes", "note")):
        said("-i", "shop", "partition", "create", name)
        said("-i", "shop", "partition", "assign", name, table)
    said("-i", "shop", "peer", "add", "depot", "--packets")  # before it is a supplier, or after: it is the same
    said("-i", "shop", "instance", "convert", "--role", "supplier")
    said("-i", "shop", "peer", "add", "island", "--packets")
    uuid = json.loads(said("--json", "-i", "shop", "instance", "show"))["network"]
    for site in SITES[1:]:
        said("instance", "create", site, "--role", "secondary", "--network", uuid)
        said("-i", "shop", "seed", "--to-file", f"stick/{site}.seed", "--for", site)
        said("-i", site, "seed", "--from-file", f"stick/{site}.seed")
        said("-i", site, "instance", "convert", "--role", "supplier")
    said("-i", "depot", "peer", "add", "shop", "--packets")
    said("-i", "depot", "peer", "add", "island", "--packets")
    said("-i", "island", "peer", "add", "depot", "--packets")
    # The two have never heard of each other: they introduce themselves.
    said("-i", "depot", "packet", "export", "--to", "island", "--receipt", "--outbox", "stick")
    said("-i", "island", "packet", "import", "stick", "--remove")
    carry("island", "depot", "shop")
    return tmp_path


def write(site: str, *statements: str) -> None:
    connection = replicate.connect(site)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def carry(*way: str) -> str:
    """Each exports for the next one, which imports and removes what is applied; what all imports have said."""
    words = ""
    for sender, target in itertools.pairwise(way):
        said("-i", sender, "packet", "export", "--to", target, "--outbox", "stick")
        words += said("-i", target, "packet", "import", "stick", "--remove")
    return words


def rows(site: str) -> list[tuple[object, ...]]:
    path = Path("shop.db") if site == "shop" else next(Path(site, "regions").glob("*.db"))
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [
            *connection.execute("SELECT * FROM item ORDER BY id"),
            *connection.execute("SELECT * FROM note ORDER BY 1"),
        ]
    finally:
        connection.close()


def vector(site: str) -> dict[str, int]:
    found = json.loads(said("--json", "-i", site, "ruv"))
    return {f"{one['name']}/{one['incarnation']}": one["last"] for one in found["origins"]}


def assert_level() -> None:
    assert rows("shop") == rows("depot") == rows("island")
    assert vector("shop") == vector("depot") == vector("island")


RING = ("shop", "depot", "island", "depot", "shop")


@pytest.mark.slow
def test_three_that_write_and_no_line(network: Path) -> None:
    """What the shop writes comes to the island by way of the depot, and back; who writes what is said by packets."""
    carry(*RING)
    said("-i", "shop", "partition", "give", "stock", "depot")
    carry(*RING)
    write("depot", "INSERT INTO item VALUES (1, 'lamp', 7)")
    with pytest.raises(replicate.dbapi.OperationalError, match="depot"):
        write("island", "INSERT INTO item VALUES (2, 'chair', 4)")
    for site in SITES[1:]:
        said("-i", "shop", "partition", "share", "notes", site)
    carry(*RING)
    for site in SITES:
        write(
            site, f"INSERT INTO note (text, author) VALUES ('same', '{site}')", "UPDATE note SET author = author || '!'"
        )
    assert "of them merged" in carry(*RING, *RING[1:], *RING[1:])
    carry(*RING, *RING[1:])
    assert_level()
    assert len(rows("island")) == 2, "who has had a unique value longer keeps it"
    lost = json.loads(said("--json", "-i", "shop", "conflict", "list"))["merges"]
    assert lost
    matrix = json.loads(said("--json", "-i", "shop", "epochs"))
    assert matrix["origins"] == ["depot", "island", "shop"]
    told = {one["replica"]: one for one in matrix["replicas"]}
    assert (told["shop"]["kind"], told["depot"]["kind"]) == ("own", "heard")
    assert told["island"]["epochs"]["shop"], "which the shop has never had a packet of"
    words = said("-i", "shop", "epochs")
    assert "island" in words
    assert said("-i", "shop", "compare", "--with", "depot").startswith("shop and depot at")
    for site in SITES:
        assert "PACKET" not in said("-i", site, "status")
        said("-i", site, "journal", "verify")


@pytest.mark.slow
def test_a_ring_by_packets_alone(network: Path) -> None:
    """Once they know one another, each exports to the next one only: what the depot writes comes to the shop by way of
    the island."""
    said("-i", "island", "peer", "add", "shop", "--packets")
    round_ = ("shop", "depot", "island", "shop")
    carry(*round_)
    said("-i", "shop", "partition", "give", "stock", "depot")
    for site in SITES[1:]:
        said("-i", "shop", "partition", "share", "notes", site)
    carry(*round_, *round_[1:])
    write("depot", "INSERT INTO item VALUES (1, 'lamp', 7)")
    for turn in range(3):
        for site in SITES:
            write(site, f"INSERT INTO note (text, author) VALUES ('{site} {turn}', '{site}')")
        write(SITES[turn], "UPDATE note SET author = author || '!'")
        carry(*round_)
    carry(*round_[1:], *round_[1:])
    assert_level()
    assert len(rows("shop")) == 10
    matrix = json.loads(said("--json", "-i", "shop", "epochs"))
    told = {one["replica"]: one for one in matrix["replicas"]}
    assert told["depot"]["kind"] == told["island"]["kind"] == "heard"
    assert told["depot"]["epochs"]["depot"]
    for site in SITES:
        assert "PACKET_GAP" not in said("-i", site, "status")
        said("-i", site, "journal", "verify")


def test_a_lost_packet_and_what_is_said_about_it(network: Path) -> None:
    carry(*RING)
    write("shop", "INSERT INTO item VALUES (1, 'a', 1)")
    said("-i", "shop", "packet", "export", "--to", "depot", "--outbox", "stick")
    (lost,) = Path("stick").glob("shop.*")
    lost.rename("lost.packet")
    write("shop", "INSERT INTO item VALUES (2, 'b', 1)")
    said("-i", "shop", "packet", "export", "--to", "depot", "--outbox", "stick")
    with pytest.raises(PacketGapError) as caught:
        said("-i", "depot", "packet", "import", "stick")
    assert caught.value.exit_code == 75
    assert " of shop, not here yet" in caught.value.what
    number = json.loads(said("--json", "-i", "shop", "packet", "exports", "--to", "depot"))[-2]["number"]
    command = f"replicate -i shop packet recover --to depot --number {number}"
    assert command in caught.value.do
    assert "PACKET_WAITS" in said("-i", "depot", "status")
    said(*command.split()[1:])
    assert carry("shop", "depot").splitlines()[1:2] == ["2 transactions applied"]
    assert "1 brings nothing that is not here" in said("-i", "depot", "packet", "import", "lost.packet")
    shown = json.loads(said("--json", "packet", "show", "lost.packet"))
    assert shown["sender"] == "shop"
    (of_shop,) = [one for one in shown["epochs"] if one["origin"] == "shop/2"]
    assert of_shop["base"] + 1 == of_shop["end"]
    assert "whole" in said("-i", "depot", "packet", "verify", "lost.packet")
    # By a receipt, where nobody knows which one it was.
    said("-i", "depot", "packet", "export", "--to", "shop", "--receipt", "--file", "back.packet")
    said("-i", "shop", "packet", "recover", "--to", "depot", "--receipt", "back.packet")
    assert "nothing to send" in said("-i", "shop", "packet", "export", "--to", "depot", "--outbox", "stick")
    assert json.loads(said("--json", "-i", "shop", "scrub", "--dry-run"))


def test_what_cannot_be_is_refused_by_name(network: Path) -> None:
    said("-i", "shop", "peer", "add", "z", "--packets")
    with pytest.raises(ReplicateError, match="nothing is known of what z has"):
        said("-i", "shop", "packet", "export", "--to", "z", "--outbox", "stick")
    said("-i", "shop", "packet", "export", "--to", "depot", "--outbox", "stick")
    with pytest.raises(ReplicateError, match="Spark finds the net change"):
        said("-i", "depot", "packet", "import", "stick", "--engine", "spark")
    with pytest.raises(ConfigurationError):
        said("-i", "depot", "promote")


class WithoutLine(SupplierStreet):
    """Suppliers a and b on a line, and c without any."""

    def build(self) -> WithoutLine:
        self.by = {name: self.directory / name for name in NAMES}
        self.others = list(self.by.values())
        self.ports = {name: free_port() for name in NAMES}
        self.stick = self.directory / "stick"
        self.stick.mkdir()
        a, b, c = self.by.values()
        self.run("instance", "create", a, "--role", "primary", "--name", "a")
        self._set(a)
        self.on(a, "region", "add", self.database)
        network = json.loads(self.on(a, "--json", "instance", "show").stdout)["network"]
        for name in NAMES[1:]:
            self.on(a, "partition", "create", f"P{name}")
            self.on(a, "partition", "assign", f"P{name}", f"t{name}")
        self.on(a, "partition", "create", "S")
        self.on(a, "partition", "assign", "S", "shared")
        self.on(a, "instance", "convert", "--role", "supplier")
        self.on(a, "peer", "add", "b", f"127.0.0.1:{self.ports['b']}")
        self.on(a, "peer", "add", "c", "--packets")
        for name in NAMES[1:]:
            self.run("instance", "create", self.by[name], "--role", "secondary", "--name", name, "--network", network)
            self._set(self.by[name])
            self.on(a, "seed", "--to-file", self.stick / f"{name}.seed", "--for", name)
            self.on(self.by[name], "seed", "--from-file", self.stick / f"{name}.seed")
            self.on(self.by[name], "instance", "convert", "--role", "supplier")
        self.on(b, "peer", "add", "a", f"127.0.0.1:{self.ports['a']}")
        self.on(b, "peer", "add", "c", "--packets")
        for name in ("a", "b"):
            self.on(c, "peer", "add", name, "--packets")
            self.start_site(name)
        self.carry("c", "a")
        for name in NAMES[1:]:
            wait_until(lambda name=name: self.gives(name), what=f"a knows {name}")
        self.carry("a", "c")
        return self

    def start_site(self, name: str) -> None:
        site = self.by[name]
        self.on(site, "receiver", "start", "--no-update", "--listen", f"127.0.0.1:{self.ports[name]}")
        self.on(site, "update", "start")
        self.on(site, "source", "start", "--peer", "b" if name == "a" else "a")

    def carry(self, sender: str, target: str) -> None:
        self.on(self.by[sender], "packet", "export", "--to", target, "--outbox", self.stick)
        self.on(self.by[target], "packet", "import", self.stick, "--remove")


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutLine]:
    """One for both tests: once partitions are shared, each import has its site tell the others something more."""
    made = WithoutLine(tmp_path_factory.mktemp("street"), settings=SETTINGS, schema=SCHEMA)
    try:
        yield made.build()
    finally:
        made.close()


@pytest.mark.slow
def test_one_that_is_turned_back_waits_for_the_line_and_for_packets(street: WithoutLine) -> None:
    """The line alone does not end it: the third site may have what only that one has."""
    site = street.by["b"]

    def level() -> bool:
        street.carry("b", "c")
        return street.vector("a") == street.vector("b") == street.vector("c")

    def files(source: Path, target: Path) -> None:
        for one in ("journal", "regions", "consumers"):
            shutil.rmtree(target / one, ignore_errors=True)
            shutil.copytree(source / one, target / one)

    street.stop_site("b")
    files(site, street.directory / "snapshot")
    street.start_site("b")
    street.finish([street.python(WRITER, str(site), "tb", "20")])
    wait_until(level, what="all have everything")
    street.stop_site("b")
    for one in ("journal", "regions", "consumers"):
        for file in (site / one).iterdir():
            file.unlink()
        for file in (street.directory / "snapshot" / one).iterdir():
            shutil.copy2(file, site / one / file.name)
    for pool in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        if str(site) in pool.read_bytes()[4096:8192].decode("utf-8", "replace"):
            pool.unlink()  # its machine has booted
    street.start_site("b")
    wait_until(lambda: street.vector("a") == street.vector("b"), what="the line has brought back what a has")

    def awaits() -> str:
        status = json.loads(street.on(site, "--json", "status", check=False).stdout)
        return next((one["text"] for one in status["findings"] if one["code"] == "RESTORING"), "")

    wait_until(lambda: awaits().endswith("waiting for c"), what="it waits for c alone")
    street.on(site, "packet", "export", "--to", "c", "--receipt", "--outbox", street.stick)
    street.on(street.by["c"], "packet", "import", street.stick, "--remove")
    street.on(street.by["c"], "packet", "export", "--to", "b", "--receipt", "--outbox", street.stick)
    street.on(site, "packet", "import", street.stick, "--remove")
    wait_until(lambda: not awaits(), what="it takes writes again")
    street.finish([street.python(WRITER, str(site), "tb", "5")])
    wait_until(level, what="all have everything")
    assert len(street.rows("c")["tb"]) == 25


@pytest.mark.slow
def test_a_line_between_two_and_packets_to_the_third_while_all_write(street: WithoutLine) -> None:
    """The daemons of the line stand aside for each import, and go on in the same processes."""
    pids = [street.daemon(street.by[name], one)["pid"] for name in ("a", "b") for one in ("receiver", "update")]
    for name in NAMES[1:]:
        street.on(street.by["a"], "partition", "share", "S", name)
    street.carry("a", "c")
    wait_until(lambda: len(_shared(street, "b")) == 2, what="b knows that it may write S")
    writers = [street.python(WRITER, str(street.by[name]), f"t{name}", "60") for name in NAMES]
    writers += [street.python(AT_ONCE, str(street.by[name]), str(at), "60") for at, name in enumerate(NAMES)]
    for _ in range(2):
        for sender, target in (("c", "a"), ("b", "c"), ("c", "b"), ("a", "c")):
            street.carry(sender, target)
    street.finish(writers)

    def level() -> bool:
        for sender, target in (("c", "a"), ("a", "c"), ("b", "c"), ("c", "b")):
            street.carry(sender, target)
        return street.vector("a") == street.vector("b") == street.vector("c")

    wait_until(level, what="all have everything")
    assert street.rows("a") == street.rows("b") == street.rows("c")
    assert len(street.rows("a")["tc"]) == 60
    assert street.rows("a")["shared"]
    again = [street.daemon(street.by[name], one)["pid"] for name in ("a", "b") for one in ("receiver", "update")]
    assert again == pids
    assert "RESTORING" not in street.findings("c")
    for name in NAMES:
        street.on(street.by[name], "journal", "verify")


def _shared(street: WithoutLine, name: str) -> list[str]:
    listed = json.loads(street.on(street.by[name], "--json", "partition", "list").stdout)
    found: list[str] = listed[-1].get("shared_with", [])
    return found
