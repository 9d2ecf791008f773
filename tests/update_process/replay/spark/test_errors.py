"""replay/spark/errors.py, without Spark: whose an error is, and which of ours it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from replicate.errors import BusyError, DamagedError, DiskFullError, JournalDamagedError, JournalIOError, TryAgainError
from update_process.replay.spark.errors import is_java_gone, is_of_spark, spark_work


def theirs(name: str, text: str, module: str = "pyspark.errors") -> Exception:
    kind: Any = type(name, (Exception,), {"__module__": module})
    made: Exception = kind(text)
    return made


def test_what_is_not_sparks_passes_as_it_is() -> None:
    for error in (ValueError("x"), BusyError("x"), KeyboardInterrupt(), FileNotFoundError("x")):
        with pytest.raises(type(error)) as caught, spark_work("reading", "/a"):
            raise error
        assert caught.value is error
    assert not is_of_spark(ConnectionResetError("of a socket of ours"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("java.io.IOException: No space left on device", DiskFullError),
        ("x is not a Parquet file", DamagedError),
        ("could not verify page integrity", DamagedError),
        ("[PATH_NOT_FOUND] Path does not exist: /a", JournalIOError),
        ("something that nobody has foreseen", TryAgainError),
    ],
)
def test_what_spark_says_becomes_one_of_ours(text: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, spark_work("reading the archive", "/a"):
        raise theirs("AnalysisException", text + "\n\tat org.apache.spark.Thing(Thing.scala:7)")
    assert type(caught.value) is kind
    assert "reading the archive" in str(caught.value)
    assert "/a" in str(caught.value)
    assert "Thing.scala" not in str(caught.value), "no Java trace reaches an operator"


def test_an_error_of_ours_in_a_worker_comes_back_as_itself() -> None:
    text = "Traceback\nreplicate.errors.JournalDamagedError: JOURNAL_DAMAGED: a frame does not verify [/j/1]\n\tat x"
    with pytest.raises(JournalDamagedError, match="a frame does not verify"), spark_work("reading", "/a"):
        raise theirs("PythonException", text)


@pytest.mark.parametrize(
    ("error", "is_gone"),
    [
        (ConnectionRefusedError("x"), True), (EOFError(), True),
        (theirs("Py4JNetworkError", "Answer from Java side is empty", "py4j.protocol"), True),
        (theirs("Py4JError", "An error occurred. Trace:\njava.lang.X", "py4j.protocol"), False),
        (theirs("Py4JJavaError", "x", "py4j.protocol"), False),
    ],
)  # fmt: skip
def test_a_java_process_that_is_gone_is_told_from_one_that_complains(error: Exception, is_gone: bool) -> None:
    assert is_java_gone(error) is is_gone
