"""`replicate web` for some instances, as a process, beside the street of a test.

Guarantees: it ends with the `with` block. Leaves to others: who looks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.harness import fork_server
from tests.harness.fork_server import Forked


class WebPage:
    """A page that is served."""

    def __init__(self, process: subprocess.Popen[str] | Forked, url: str) -> None:
        self.process = process
        self.url = url

    def resident_bytes(self) -> int:
        """The memory that the process has in use."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * 4096

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def web_page(environment: Mapping[str, str], *instances: Path | str) -> Iterator[WebPage]:
    """A page of these instances, or of those on other pages, at a free port."""
    named = [word for instance in instances for word in ("-i", str(instance))]
    command = [sys.executable, "-m", "replicate.cli.main", "web", "--listen", "127.0.0.1:0", *named]
    process = fork_server.popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield WebPage(process, line.split()[-1])
    finally:
        process.kill()
        process.communicate()
