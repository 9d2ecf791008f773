"""What a start imports: a user waits for it each time, and a catch-up waits for the start of its Source Server."""

from __future__ import annotations

import subprocess
import sys

import pytest

OF_COMMANDS = {"click", "msgspec"}
OF_DAEMONS = {*OF_COMMANDS, "apsw", "attr", "attrs", "crc32c", "idna", "msgpack", "msgspec", "outcome", "sniffio",
              "sortedcontainers", "structlog", "trio", "xxhash"}  # fmt: skip
"""Other distributions. What trio stands on is the larger part of a daemon's start."""
OF_STREAMS = {*OF_DAEMONS, "zstandard"}

ROOMS = {"replicate.admin", "replicate.bench", "replicate.dbapi", "replicate.logs", "replicate.seeing", "replicate.web"}
"""Of ours, what no daemon needs."""
FOR_FEW = (
    "replicate.filters.program",  # filters, some rows or columns
    "replicate.filters.conversation",
    "replicate.filters.rows",
    "replicate.filters.wishes",
    "replicate.daemon.metrics_port",  # metrics_listen
    "replicate.transfer.packet",  # packets in files
    "replicate.security.certificate",  # the private CA
)

FOR_FEW_SOURCES = ("replicate.lost.travel", "replicate.audit.show")  # lost files


def imported(program: str) -> set[str]:
    """The names of all modules after it."""
    program = f"import sys; before = set(sys.modules)\n{program}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def others(names: set[str]) -> set[str]:
    """The distributions among them that are neither ours nor Python's."""
    known = sys.stdlib_module_names | {"replicate", "source_server", "receiver_server", "update_process"}
    known |= {"cython_runtime", "typing_extensions"}  # of extensions, without a file; msgspec's, where it is installed
    return {name for name in {one.partition(".")[0] for one in names} - known if not name.startswith("_")}


def test_a_short_command_imports_little() -> None:
    found = imported("from replicate.cli.main import run; run(['--version'])")
    assert others(found) == OF_COMMANDS
    assert not {"importlib.metadata", "email", "socket", "subprocess", "ssl"} & found


@pytest.mark.parametrize("verb", ["source", "receiver", "update"])
def test_the_command_that_starts_a_daemon_imports_no_loop(verb: str) -> None:
    found = imported(f"import replicate.cli.{verb}, replicate.daemon.control, replicate.instance.instance")
    assert others(found) <= {*OF_COMMANDS, "apsw", "crc32c", "msgpack", "xxhash"}
    assert not {name for name in found if name.startswith(("replicate.door", "replicate.journal", "replicate.wire"))}


@pytest.mark.parametrize(
    ("verb", "server", "distributions"),
    [
        ("source", "source_server", OF_STREAMS),
        ("receiver", "receiver_server", OF_STREAMS),
        ("update", "update_process", OF_DAEMONS),
    ],
)
def test_a_daemon_imports_what_a_plain_pair_needs(verb: str, server: str, distributions: set[str]) -> None:
    found = imported(f"import replicate.cli.{verb}, replicate.daemon.daemon, {server}.process")
    assert others(found) == distributions
    assert not {"multiprocessing", "unittest"} & found
    assert not {name for name in found if ".".join(name.split(".")[:2]) in ROOMS}
    for_few = (*FOR_FEW, *FOR_FEW_SOURCES) if verb == "source" else FOR_FEW
    assert not {name for name in found if name.startswith(for_few)}
    foreign = {"source_server", "receiver_server", "update_process"} - {server}
    assert not {name for name in found if name.partition(".")[0] in foreign}
