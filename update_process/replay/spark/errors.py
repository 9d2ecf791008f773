"""What went wrong in Spark, as one of our errors.

Guarantees: an error that our own code has raised in a worker comes back as itself; what is damaged, what does not fit
on a disk, what another try may mend, and a Java process that has gone are told apart; no Java trace reaches an
operator, and nothing that the operating system says of the sockets to Java.
Leaves to others: what Spark was doing.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replicate import errors
from replicate.errors import DamagedError, DiskFullError, JournalIOError, ReplicateError, TryAgainError
from update_process.replay.archive.files import first_line

_OURS: Final = re.compile(r"\breplicate\.errors\.(\w+): [A-Z_]+: (.*)")
_DAMAGED: Final = re.compile(
    r"could not verify page integrity|CRC checksum|ChecksumException|is not a Parquet file|ParquetDecodingException"
    r"|CANNOT_READ_FILE|FAILED_READ_FILE|cannot read class org\.apache\.parquet|Corrupt",
    re.IGNORECASE,
)
_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded|DSQuotaExceeded|ENOSPC")
_TEXT_MAX: Final = 300


@contextmanager
def spark_work(what: str, where: str) -> Iterator[None]:
    """Translate what Spark raises within. `what`: what is being done, for the error; `where`: with what files."""
    try:
        yield
    except (ReplicateError, KeyboardInterrupt):
        raise
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise translated(error, what, where) from error


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark has raised it: by its class, or, as py4j leaves an OSError of its sockets what it is, by where."""
    if type(error).__module__.startswith(("pyspark.", "py4j.", "pyarrow.")):
        return True
    if not isinstance(error, (OSError, EOFError)):
        return False
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(module.startswith(("pyspark.", "py4j.")) for module in modules)


def is_java_gone(error: BaseException) -> bool:
    """Whether an error of Spark says that its Java process has ended, or cannot be reached."""
    if isinstance(error, (ConnectionError, EOFError)):
        return True
    # What Java itself has thrown is a Py4JJavaError, or has its trace in the text.
    return type(error).__name__ in ("Py4JNetworkError", "Py4JError") and "Trace:" not in str(error)


def java_gone(error: BaseException, what: str, where: str) -> TryAgainError:
    """The error of ours for one that `is_java_gone`."""
    return TryAgainError(
        f"{what}: Spark's Java process has ended, or does not answer: {first_line(error)[:_TEXT_MAX]}",
        where=where,
        do="Mostly the machine had no memory left for it, and the kernel's log (dmesg) says so: free some, or set "
        "spark.driver.memory; then run the same command again. A replay also goes without Spark: --engine local",
    )


def translated(error: BaseException, what: str, where: str) -> ReplicateError:
    """The one error of ours that says it."""
    text = str(error)
    for ours in _OURS.finditer(text):
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, ReplicateError):
            return kind(f"{what}: {ours[2].strip()}", where=where)
    if is_java_gone(error):
        return java_gone(error, what, where)
    short = first_line(error)[:_TEXT_MAX]
    if _FULL.search(text):
        return DiskFullError(
            f"{what}: no space is left",
            where=where,
            do="Free space there, or give Spark another place (SPARK_LOCAL_DIRS); then run the same command again",
        )
    if _DAMAGED.search(text):
        return DamagedError(
            f"{what}: {short}",
            where=where,
            do="Run `replicate -i INSTANCE archive --verify`; restore the files, or use segments",
        )
    if "FileNotFound" in text or "PATH_NOT_FOUND" in text:
        return JournalIOError(f"{what}: {short}", where=where, do="Restore the file, or archive again elsewhere")
    return TryAgainError(
        f"{what}: Spark has failed: {short}", where=where, do="Nothing was changed by it; run the same command again"
    )
