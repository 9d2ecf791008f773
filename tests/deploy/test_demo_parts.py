"""The parts of the demonstration: its application on plain SQLite, its relay, and its comparison."""

from __future__ import annotations

import importlib.util
import json
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def load(name: str) -> ModuleType:
    """A module of deploy/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


application = load("demo_application")
compare = load("demo_compare")
relay_module = load("demo_relay")
commands = load("demo_commands")
failover = load("demo_failover")
demo = load("demo")


def test_without_proc_it_says_so_before_it_makes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "PROC", tmp_path / "proc")
    with pytest.raises(commands.DemoFailedError, match="is not there; as root: mount -t proc proc") as found:
        commands.Workshop(str(tmp_path / "demo"), keep=True)
    assert found.value.exit_code == 69
    assert not (tmp_path / "demo").exists()
    assert demo._demonstrate(str(tmp_path / "demo"), True, 1.0) == 69
    assert capsys.readouterr().err.startswith(f"deploy/demo: {tmp_path / 'proc'} is not there")


def test_the_last_number_is_explained() -> None:
    text = " ".join(" ".join(demo.explained(4978, 4976)).split())
    assert "number 4978?" in text
    assert "the writers' 4976, and before them 2 that began its journal and added the region" in text


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    application.create(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    return path


def test_two_writers_leave_a_consistent_shop_and_numbers_without_a_gap(shop: Path) -> None:
    command = [sys.executable, str(DEPLOY / "demo_application.py"), "write", "--plain", str(shop), "--rate", "100000"]
    writers = [
        subprocess.Popen([*command, "--seconds", "1", "--writer", str(number)], stdout=subprocess.PIPE, text=True)
        for number in (1, 2)
    ]
    reports = [json.loads(writer.communicate(timeout=60)[0].splitlines()[-1]) for writer in writers]
    connection = sqlite3.connect(shop)
    for report in reports:
        assert report["finished"]
        stands = connection.execute(
            "SELECT count(*), max(number) FROM journal_of_work WHERE writer = ?", (report["writer"],)
        ).fetchone()
        assert stands == (report["number"], report["number"])
        assert report["number"] > 0
    wrong = connection.execute(
        "SELECT count(*) FROM purchase p WHERE total_cents IS NOT"
        " (SELECT sum(quantity * price_cents) FROM purchase_line l WHERE l.purchase_id = p.purchase_id)"
    ).fetchone()
    assert wrong == (0,)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def test_every_kind_of_work_happens_and_some_is_rolled_back(shop: Path) -> None:
    connection = sqlite3.connect(shop)
    connection.execute("PRAGMA foreign_keys = ON")
    writer = application.Writer(connection, 1, application.random.Random(5))
    for _ in range(600):
        writer.step()
    kinds = {what for (what,) in connection.execute("SELECT DISTINCT what FROM journal_of_work")}
    assert kinds == {"order", "pay", "customer", "cancel", "reprice", "document", "order, in part", "tidy"}
    assert writer.report.rolled_back > 0
    connection.close()


def test_equal_files_are_equal(shop: Path, tmp_path: Path) -> None:
    found = compare.compare_files(shop, shop, tmp_path)
    assert found.differences == ()
    assert found.rows["customer"] == application.CUSTOMERS
    assert set(found.rows) >= {"purchase", "journal_of_work", "sqlite_sequence"}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE customer SET note = CAST(note AS BLOB) WHERE customer_id = 1",
        "UPDATE customer SET note = NULL, photo = CAST(name AS BLOB) WHERE customer_id = 7",
        "UPDATE product SET weight_kg = weight_kg + 1e-9 WHERE sku = 'SKU-0007'",
        "DELETE FROM stock WHERE warehouse = 1 AND sku = 'SKU-0003'",
        "UPDATE stock SET rowid = rowid + 100000 WHERE warehouse = 2 AND sku = 'SKU-0099'",
        "INSERT INTO event VALUES ('x', 1, 1.0)",
        "INSERT INTO sqlite_sequence VALUES ('purchase', 7)",
        "DROP INDEX purchase_unpaid",
        "DROP TRIGGER purchase_line_added",
        "CREATE TABLE other (x)",
    ],
)
def test_the_smallest_difference_is_found(shop: Path, tmp_path: Path, change: str) -> None:
    other = tmp_path / "other.db"
    other.write_bytes(shop.read_bytes())
    connection = sqlite3.connect(other)
    with connection:
        connection.execute("UPDATE customer SET credit = 3.5, note = 'n' WHERE customer_id IN (1, 7)")
    connection.close()
    connection = sqlite3.connect(shop)
    with connection:
        connection.execute("UPDATE customer SET credit = 3.5, note = 'n' WHERE customer_id IN (1, 7)")
        assert connection.execute(change).rowcount in (-1, 1)
    connection.close()
    found = compare.compare_files(shop, other, tmp_path)
    assert len(found.differences) >= 1
    assert compare.compare_files(shop, shop, tmp_path).differences == ()


def test_what_stands_only_in_the_write_ahead_log_counts(shop: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.db"
    before.write_bytes(shop.read_bytes())
    connection = sqlite3.connect(shop)
    with connection:
        connection.execute("INSERT INTO event VALUES ('late', NULL, NULL)")
    assert compare.compare_files(shop, before, tmp_path).differences != ()
    connection.close()


class Sink:
    """A server that takes whatever comes, connection after connection."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.received: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.received.append(b"")
            threading.Thread(target=self._take, args=(connection, len(self.received) - 1), daemon=True).start()

    def _take(self, connection: socket.socket, index: int) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    self.received[index] += piece
                    connection.sendall(b"ok")
            except OSError:
                return


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.listener.close()


def test_the_relay_cuts_in_the_middle_of_the_stream_and_mends(sink: Sink) -> None:
    relay = relay_module.Relay(sink.port)
    source = socket.create_connection(("127.0.0.1", relay.port), timeout=60)
    source.sendall(b"a" * 500)
    assert source.recv(10) == b"ok"

    cut: list[bool] = []
    cutter = threading.Thread(target=lambda: cut.append(relay.cut(60.0)))
    cutter.start()
    broken = False
    while not broken and cutter.is_alive():
        try:
            source.sendall(b"b" * 1000)
            broken = source.recv(10) == b""
        except ConnectionError:
            broken = True
    cutter.join()
    assert cut == [True]
    assert relay.carried.cuts == 1
    assert not relay.carries_again(0.0)

    with (
        pytest.raises(ConnectionResetError),  # while it connects, if the relay is quick
        socket.create_connection(("127.0.0.1", relay.port), timeout=60) as refused,
    ):
        refused.recv(1)
    relay.mend()
    assert not relay.carries_again(0.0)  # nobody has come yet; what went before the cut does not count
    again = socket.create_connection(("127.0.0.1", relay.port), timeout=60)
    again.sendall(b"c" * 500)
    assert again.recv(10) == b"ok"
    assert relay.carries_again(60.0)
    assert len(relay.carried.per_connection) == 2
    relay.close()
    for used in (source, again):
        used.close()


def test_the_relay_swallows_without_a_word_and_what_waited_comes_through_in_the_end(sink: Sink) -> None:
    relay = relay_module.Relay(sink.port)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60) as source:
        source.sendall(b"a" * 500)
        assert source.recv(10) == b"ok"
        relay.swallow()
        source.sendall(b"b" * 500)
        source.setblocking(False)
        with pytest.raises(BlockingIOError):  # no answer, no end
            source.recv(10)
        assert sink.received == [b"a" * 500]
        relay.mend()
        source.settimeout(60)
        assert source.recv(10) == b"ok"
        assert sink.received == [b"a" * 500 + b"b" * 500]
        relay.swallow()  # and its end does not wait for the mending
        relay.close()


def test_a_cut_of_a_silent_connection_did_not_happen(sink: Sink) -> None:
    relay = relay_module.Relay(sink.port)
    with socket.create_connection(("127.0.0.1", relay.port), timeout=60):
        assert not relay.cut(0.1)
    assert relay.carried.cuts == 0
    relay.close()


def test_one_kind_of_work_alone(shop: Path) -> None:
    connection = sqlite3.connect(shop)
    writer = application.Writer(connection, 7, application.random.Random(7), "edit_customer")
    for _ in range(20):
        writer.step()
    connection.close()
    found = sqlite3.connect(shop)
    assert set(found.execute("SELECT what FROM journal_of_work WHERE writer = 7")) == {("customer",)}
    assert found.execute("SELECT count(*) FROM purchase").fetchone() == (0,)
    found.close()
