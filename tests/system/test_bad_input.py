"""Bad input, as an operator meets it: each gets one clear line with what, where and what to do, the right exit code,
and nothing is lost. Everything through the command line and `replicate.connect`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicate.instance.file import FORMATS
from tests.harness.street import SCHEMA, Street, make_database
from tests.harness.waiting import wait_until

SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 2097152
    [source]
    heartbeat_period_s = 0.5
    dead_after_s = 2.0
    hard_tries = 1
    hard_period_s = 0.1
    soft_period_s = 0.2
    [receiver]
    pool_bytes = 4194304
    heartbeat_period_s = 0.5
    dead_after_s = 2.0
"""

TRY = """
import sys, replicate
try:
    connection = replicate.connect(sys.argv[1], timeout=60)
    connection.execute("INSERT INTO loose VALUES ('tried', ?)", ("y" * int(sys.argv[2]),))
    connection.commit()
    print(connection.last_seqno)
except Exception as error:
    sys.exit(f"{error}")
"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    """A primary with a few transactions, and nothing running. Tests put back what they break."""
    made = Street(tmp_path_factory.mktemp("quiet"), settings=SETTINGS).build()
    try:
        made.write(*(f"INSERT INTO loose VALUES ({number}, '{'x' * 50}')" for number in range(5)))
        made.write("INSERT INTO loose VALUES ('second', 2)")
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    """The whole street, running; tests leave it so."""
    made = Street(tmp_path_factory.mktemp("running"), settings=SETTINGS).build()
    try:
        yield made.start()
    finally:
        made.close()


def reboot(street: Street) -> None:
    """Shared memory is gone, as after a restart of the machine."""
    for file in Path(street.environment["REPLICATE_SHM_DIR"]).iterdir():
        file.unlink()


def attempt(street: Street, instance: Path | None = None, size: int = 1) -> tuple[int, str]:
    """A transaction through replicate.connect: (0, its seqno) or (1, the error)."""
    process = street.python(TRY, str(instance or street.primary), str(size))
    output, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors
    return process.returncode, (output or errors).strip()


def refused(street: Street, instance: Path, *arguments: str | Path) -> tuple[int, str]:
    """A command that must fail: its exit code and its one line."""
    done = street.on(instance, *arguments, check=False)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    return done.returncode, lines[0]


def last_error(street: Street, code: str) -> str:
    """Wait until the Source Server says why it is not connected."""
    found: list[str] = []

    def says() -> bool:
        found[:] = [str(street.daemon(street.primary, "source-secondary")["facts"].get("last_error") or "")]
        return code in found[0]

    wait_until(says, what=f"the source says {code}")
    return found[0]


# The journal.


def segment(street: Street) -> Path:
    return max((street.primary / "journal").glob("*.journal"))


def flip(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"x" * 50)
    path.write_bytes(data[:at] + b"Y" + data[at + 1 :])


def other_version(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:11] + b"\x02" + data[12:])


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (flip, "JOURNAL_DAMAGED"),
        (lambda path: os.truncate(path, 4096 + 300), "JOURNAL_DAMAGED"),
        (lambda path: os.truncate(path, 0), "JOURNAL_DAMAGED"),
        (lambda path: path.write_bytes(b"garbage" * 1000), "JOURNAL_DAMAGED"),
        (other_version, "FORMAT_UNKNOWN"),
        (lambda path: path.unlink(), "JOURNAL_MISSING"),
    ],
    ids=["flipped", "truncated", "empty", "garbage", "newer", "removed"],
)
def test_a_damaged_journal(quiet: Street, damage: Callable[[Path], object], code: str) -> None:
    path = segment(quiet)
    whole = path.read_bytes()
    reboot(quiet)
    damage(path)
    try:
        verified = quiet.on(quiet.primary, "journal", "verify", check=False)
        assert verified.returncode == 65
        assert "1 finding" in verified.stdout
        status = quiet.on(quiet.primary, "status", check=False)
        assert status.returncode == 1
        assert "the journal cannot be opened" in status.stdout
        assert "level" not in status.stdout or "error:" in status.stdout
        assert "region release NAME --force" in status.stdout
        assert "seed from" not in status.stdout
        failed, text = attempt(quiet)
        assert failed
        assert code in text
        assert str(quiet.primary / "journal") in text
        assert "seed from" not in text
    finally:
        path.write_bytes(whole)
        path.chmod(0o600)
    reboot(quiet)
    assert attempt(quiet)[0] == 0
    assert quiet.on(quiet.primary, "journal", "verify").returncode == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda text: text[:40] + chr(ord(text[40]) ^ 1) + text[41:], "DAMAGED"),
        (lambda _text: "", "DAMAGED"),
        (lambda text: text.replace('"format": 1', f'"format": {max(FORMATS) + 1}'), "FORMAT_UNKNOWN"),
    ],
    ids=["flipped", "empty", "newer"],
)
def test_a_damaged_instance_file(quiet: Street, change: Callable[[str], str], code: str) -> None:
    file = quiet.primary / "instance.json"
    whole = file.read_text()
    file.write_text(change(whole))
    try:
        exit_code, line = refused(quiet, quiet.primary, "status")
        assert (exit_code, line.partition(":")[0]) == (65, code)
        assert str(file) in line
    finally:
        file.write_text(whole)
    assert attempt(quiet)[0] == 0


@pytest.mark.parametrize("name", ["journal", "run", "locks", "log"])
def test_a_missing_directory(quiet: Street, name: str) -> None:
    aside = quiet.primary / "aside"
    (quiet.primary / name).rename(aside)
    try:
        exit_code, line = refused(quiet, quiet.primary, "status")
        assert (exit_code, line.partition(":")[0]) == (69, "NOT_FOUND")
        assert str(quiet.primary / name) in line
        assert "NOT_FOUND" in attempt(quiet)[1]
    finally:
        aside.rename(quiet.primary / name)
    assert attempt(quiet)[0] == 0


# Regions.


@pytest.mark.parametrize(
    "replace",
    [
        lambda path: make_database(path, SCHEMA),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no database" * 1000),
        lambda _path: None,
    ],
    ids=["another", "empty", "garbage", "missing"],
)
def test_a_region_file_that_was_replaced(quiet: Street, replace: Callable[[Path], object]) -> None:
    files = [Path(f"{quiet.database}{ending}") for ending in ("", "-wal", "-shm")]
    kept = [file for file in files if file.exists()]
    for file in kept:
        file.rename(f"{file}.kept")
    try:
        replace(quiet.database)
        failed, text = attempt(quiet)
        assert failed
        assert str(quiet.database) in text
        status = quiet.on(quiet.primary, "status", check=False)
        assert status.returncode == 1
        assert f"error: region main: {text.partition(':')[0]}" in status.stdout
    finally:
        for file in files:
            file.unlink(missing_ok=True)
        for file in kept:
            Path(f"{file}.kept").rename(file)
    assert attempt(quiet)[0] == 0


def test_an_old_copy_of_a_region(quiet: Street) -> None:
    old, new = quiet.directory / "old.db", quiet.directory / "new.db"
    # Nobody has it open, so there is no WAL beside it.
    assert attempt(quiet)[0] == 0
    shutil.copyfile(quiet.database, old)
    before = int(attempt(quiet)[1])
    quiet.database.rename(new)
    shutil.copyfile(old, quiet.database)
    failed, text = attempt(quiet)
    assert failed
    assert "REGION_REPLACED" in text
    assert f"it held {before} before" in text
    status = quiet.on(quiet.primary, "status", check=False)
    assert status.returncode == 1
    assert "this is an old copy" in status.stdout
    for ending in ("-wal", "-shm"):
        Path(f"{quiet.database}{ending}").unlink(missing_ok=True)
    new.replace(quiet.database)
    assert attempt(quiet) == (0, str(before + 1))


UNPRIVILEGED = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: modes hold for root, too
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_region(tmp_path: Path, what: str) -> None:
    street = Street(tmp_path, settings=SETTINGS)
    inside = tmp_path / "inside"
    inside.mkdir()
    street.database = inside / "app.db"
    make_database(street.database, SCHEMA)
    street.build()
    try:
        changed = street.database if what == "file" else inside
        changed.chmod(0o400 if what == "file" else 0o500)
        process = street.python(UNPRIVILEGED, "-c", TRY, str(street.primary), "1")
        _, text = process.communicate(timeout=120)
        assert process.returncode == 1, text
        assert str(changed) in text
        assert "Traceback" not in text
        changed.chmod(0o700)
        assert attempt(street)[0] == 0
    finally:
        inside.chmod(0o700)
        street.close()


# Peers.


def test_an_occupied_port_and_an_address_that_is_not_ours(running: Street) -> None:
    other = running.directory / "other"
    network = json.loads(running.on(running.primary, "--json", "instance", "show").stdout)["network"]
    running.run("instance", "create", other, "--role", "secondary", "--network", network)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        exit_code, line = refused(running, other, "receiver", "start", "--listen", address)
    assert exit_code == 73
    assert address in line
    assert "--listen" in line
    for address, expected in (("0.0.0.0:7430", 78), ("10.0.0.1:7430", 78), ("127.0.0.1:99999", 78), ("a b", 78)):
        assert refused(running, other, "receiver", "start", "--listen", address)[0] == expected
    assert refused(running, other, "update", "start")[0] == 69  # not seeded
    assert not list((other / "run").glob("*.pid"))


@pytest.mark.slow
def test_peers_that_are_not_the_secondary(running: Street) -> None:
    """Of another network, another instance of the same name, no instance at all, and nobody: each is named."""
    network = json.loads(running.on(running.primary, "--json", "instance", "show").stdout)["network"]
    port = running.port()
    running.on(running.primary, "source", "stop")
    for name, joined, code in (
        ("alien", "11111111-1111-1111-1111-111111111111", "WRONG_NETWORK"),
        ("twin", network, "WRONG_INSTANCE"),
    ):
        instance = running.directory / name
        running.others.append(instance)
        running.run("instance", "create", instance, "--role", "secondary", "--name", "secondary", "--network", joined)
        (instance / "replicate.toml").write_text("[receiver]\npool_bytes = 4194304\n")
        running.on(instance, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
        there = running.daemon(instance, "receiver")["facts"]["listen"]
        running.on(running.primary, "peer", "add", "--replace", "secondary", there)
        running.start_source()
        assert "secondary" in last_error(running, code)

        def is_told() -> bool:  # but for the moments in which it tries again
            status = running.on(running.primary, "status", check=False)
            return status.returncode == 1 and "bottleneck: the connection to secondary" in status.stdout

        wait_until(is_told, what="status names the connection")
        running.on(running.primary, "source", "stop")
        running.on(instance, "receiver", "stop", "--keep-update")
        if code == "WRONG_NETWORK":
            assert refused(running, instance, "seed", "--from", running.primary)[0] == 76
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        running.on(running.primary, "peer", "add", "--replace", "secondary", f"127.0.0.1:{server.getsockname()[1]}")
        running.start_source()
        accepted, _ = server.accept()
        with accepted:
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            last_error(running, "NOT_AUTHENTICATED")
    last_error(running, "UNREACHABLE")
    running.on(running.primary, "source", "stop")
    running.on(running.primary, "peer", "add", "--replace", "secondary", f"127.0.0.1:{port}")
    running.start_source()
    running.prove_equal()


def test_garbage_sent_to_the_receiver(running: Street) -> None:
    for garbage in (b"GET / HTTP/1.0\r\n\r\n", bytes(4096), b"\xff" * 5000):
        with socket.create_connection(("127.0.0.1", running.port())) as connection:
            connection.settimeout(60)
            connection.sendall(garbage)
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
            assert b"PROTOCOL" in answer
    running.prove_equal()


# Settings, options, the other package.


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[journal]\ndurabilty = "off"', "journal.durability"),
        ("[jornal]\n", "[journal]"),
        ('[journal]\nsegment_bytes = "many"', "journal.segment_bytes"),
        ("[journal]\nsegment_bytes = 1", "journal.segment_bytes"),
        ('[log]\nrow_values = "yes"', "log.row_values"),
        ("[source]\nheartbeat_period_s = 10\ndead_after_s = 5", "source.dead_after_s"),
        ("[receiver]\nxon_percent = 90\nxoff_percent = 90", "receiver.xon_percent"),
        ('[journal]\nsegment_bytes = "1 GiB"\ncap_bytes = "1 GiB"', "journal.cap_bytes"),
        ('[receiver]\nlisten = "127.0.0.1:99999"', "receiver.listen"),
        ("[journal\n", "line 1"),
    ],
)
def test_settings_that_cannot_work(quiet: Street, text: str, named: str) -> None:
    file = quiet.secondary / "replicate.toml"
    whole = file.read_text()
    file.write_text(text)
    try:
        for arguments in (("config", "check"), ("receiver", "start")):
            exit_code, line = refused(quiet, quiet.secondary, *arguments)
            assert exit_code == 78
            assert named in line
            assert str(file) in line
    finally:
        file.write_text(whole)


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("nonsense",), 2),
        (("status", "--nonsense"), 2),
        (("wait",), 2),
        (("wait", "--seqno", "-1"), 2),
        (("wait", "--seqno", "9999", "--timeout", "0.1"), 75),
        (("digest", "--at", "1", "--timeout", "1"), 75),
        (("source", "start", "--peer", "nobody"), 69),
        (("source", "stop", "--peer", "nobody"), 69),
        (("source", "start", "--set", "x"), 2),
        (("peer", "remove", "nobody"), 69),
        (("peer", "add", "a b", "127.0.0.1:1"), 2),
        (("peer", "add", "west", "10.0.0.1:1"), 78),
        (("region", "release", "nothing"), 69),
        (("region", "add", "/nonexistent/file.db"), 69),
        (("seed", "--from", "/nonexistent"), 69),
        (("instance", "create"), 73),
        (("instance", "create", "{tmp}", "--role", "secondary"), 78),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_wrong_words_have_their_exit_code(
    quiet: Street, tmp_path: Path, arguments: tuple[str, ...], exit_code: int
) -> None:
    given = [word.replace("{tmp}", str(tmp_path / "new")) for word in arguments]
    if arguments[0] in ("source",):
        quiet.on(quiet.primary, "peer", "add", "one", "127.0.0.1:1")
        quiet.on(quiet.primary, "peer", "add", "two", "127.0.0.1:2")
    done = quiet.on(quiet.primary, *given, check=False)
    assert done.returncode == exit_code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_other_package_beside_ours(quiet: Street, tmp_path: Path) -> None:
    metadata = tmp_path / "replicate-1.0.4.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: replicate\nVersion: 1.0.4\n")
    environment = {**quiet.environment, "PYTHONPATH": f"{quiet.environment['PYTHONPATH']}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-m", "replicate.cli.main", "-i", str(quiet.primary), "status"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 78
    assert done.stderr.startswith("OTHER_PACKAGE")
    assert "pip uninstall replicate" in done.stderr
    library = subprocess.run(
        [sys.executable, "-c", "import sys, replicate; replicate.connect(sys.argv[1])", str(quiet.primary)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert library.returncode == 1
    assert "OTHER_PACKAGE" in library.stderr.splitlines()[-1]
    assert "pip uninstall replicate" in library.stderr


def test_permissions_of_the_instance_directory(quiet: Street) -> None:
    quiet.primary.chmod(0o777)
    try:
        exit_code, line = refused(quiet, quiet.primary, "status")
        assert (exit_code, line.partition(":")[0]) == (77, "PERMISSION")
        assert "PERMISSION" in attempt(quiet)[1]
    finally:
        quiet.primary.chmod(0o700)
    assert attempt(quiet)[0] == 0
