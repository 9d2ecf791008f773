"""The command `replicate`, carried out in this process: an answer in milliseconds, where a process of its own takes a
third of a second to start.

Guarantees: exit code and both outputs are those of a process (`replicate.cli.main.run` is what it runs); environment,
umask, outputs and signals are afterwards as they were. A daemon that it starts is forked (fork_server.py).
Leaves to others: which commands want a process of their own.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from replicate.cli.main import run
from tests.harness.fork_server import daemons_are_forked


def call(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `replicate ARGUMENTS` with this environment."""
    outputs = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with in_environment(environment), redirect_stdout(outputs[0]), redirect_stderr(outputs[1]), daemons_are_forked():
        umask = os.umask(0o077)
        try:
            code = run(list(arguments))
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        finally:
            os.umask(umask)
    texts = [output.buffer.getvalue().decode() for output in outputs]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess([sys.executable, *arguments], code, *texts)


@contextmanager
def in_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """This process has exactly this environment."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
