"""Spark's Java process is gone, before or while it is asked for something: one error says so, and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters
from py4j.protocol import Py4JError, Py4JNetworkError

from replicate.errors import TryAgainError
from update_process.replay.spark import session
from update_process.replay.spark.errors import is_of_spark, spark_work, translated

KILLED = """
from update_process.replay.spark.session import session
from replicate.errors import TryAgainError
try:
    with session("local[1]") as spark:
        process = spark.sparkContext._gateway.proc
        process.kill()
        process.wait()
        spark.range(1).count()
except TryAgainError as error:
    print(error)
"""


@pytest.fixture
def gone() -> Iterator[Any]:
    """A gateway to a Java process that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gateway = ClientServer(
        java_parameters=JavaParameters(port=port, auth_token="x", auto_field=True, auto_convert=True)
    )
    yield gateway
    gateway.close()


def test_a_refused_connection_to_java_is_named(gone: Any) -> None:
    """py4j leaves it the OSError that it is."""
    with pytest.raises(TryAgainError, match="the rows cannot be read: Spark's Java process has ended") as caught:
        with spark_work("the rows cannot be read", "here"):
            gone.jvm.System.currentTimeMillis()
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    assert caught.value.where == "here"
    assert "run the same command again" in caught.value.do


def test_a_refused_connection_at_the_start_is_named(gone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, None)
    monkeypatch.setattr(session, "_launch", lambda _conf, _where: gone)
    with pytest.raises(TryAgainError, match=r"Spark does not start: Spark's Java process.*refused.*\[local\[1\]\]"):
        session.make_session("local[1]")


def test_an_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(FileNotFoundError) as caught, spark_work("the rows cannot be read", "here"):
        os.stat("/nowhere/at/all")
    assert not is_of_spark(caught.value)


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), True),
        (Py4JError("An error occurred while calling o7.count"), True),
        (Py4JError("An error occurred while calling o7.count. Trace:\njava.lang.OutOfMemoryError"), False),
    ],
)
def test_what_java_has_thrown_is_told_from_its_end(error: Exception, is_gone: bool) -> None:
    assert ("Java process has ended" in str(translated(error, "what", "where"))) == is_gone


@pytest.mark.slow
def test_java_is_killed_during_a_session(tmp_path: Path) -> None:
    """Outside of every piece of work that has a name. Who is killed leaves what it has made below its temporary
    directories, so those are the test's."""
    places = {"SPARK_LOCAL_DIRS": str(tmp_path), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={tmp_path}"}
    command, environment = [sys.executable, "-c", KILLED], {**os.environ, **places}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("TRY_AGAIN: what Spark was asked for is not done: Spark's Java process has ended")
    assert "[local[1]]" in done.stdout
