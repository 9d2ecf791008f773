"""What went wrong in Spark, as one of our errors.

Guarantees: an error that our own code has raised in a worker comes back as itself; what is damaged, what does not fit
on a disk, and what another try may mend are told apart; no Java trace reaches an operator.
Refuses to know: what Spark was doing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from replicate import errors
from replicate.errors import DamagedError, DiskFullError, JournalIOError, ReplicateError, TryAgainError
from update_process.replay.archive_files import first_line

_OURS: Final = re.compile(r"\breplicate\.errors\.(\w+): [A-Z_]+: (.*)")
_DAMAGED: Final = re.compile(
    r"could not verify page integrity|CRC checksum|ChecksumException|is not a Parquet file|ParquetDecodingException"
    r"|CANNOT_READ_FILE|FAILED_READ_FILE|can not read class org\.apache\.parquet|Corrupt",
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
        if not type(error).__module__.startswith(("pyspark.", "py4j.", "pyarrow.")):
            raise
        raise translated(error, what, where) from error


def translated(error: BaseException, what: str, where: str) -> ReplicateError:
    """The one error of ours that says it."""
    text = str(error)
    for ours in _OURS.finditer(text):
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, ReplicateError):
            return kind(f"{what}: {ours[2].strip()}", where=where)
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
        return JournalIOError(f"{what}: {short}", where=where, do="Restore the file, or archive anew elsewhere")
    return TryAgainError(
        f"{what}: Spark has failed: {short}", where=where, do="Nothing was changed by it; run the same command again"
    )
