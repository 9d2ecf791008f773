"""Logs of daemons as tests make them up: lines as the daemons write them, files of every kind.

Guarantees: what is made is what replicate/daemon/log.py would have written of it. Leaves to others: what is read of it.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import zstandard

from replicate.logs.line import LogLine, Teller, read_line
from replicate.model.moment import iso_us

START_US = 1_900_000_000_000_000
"""2030-03-17 17:46:40 UTC."""
SOURCE = Teller("left", "/srv/east", "source-west")
RECEIVER = Teller("right", "/srv/west", "receiver")
UPDATE = Teller("right", "/srv/west", "update")
BACK = Teller("right", "/srv/west", "source-east")
"""The Source Server of the site that receives."""

COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    "": bytes,
}


def raw(at_s: float, teller: Teller, event: str, *, pid: int = 7, **fields: Any) -> bytes:
    """A line of a log, so many seconds after START_US."""
    return (
        json.dumps(
            {
                "daemon": teller.daemon, "instance": teller.instance, "host": teller.host, "pid": pid, **fields,
                "event": event, "level": "info", "timestamp": iso_us(START_US + round(at_s * 1e6)),
            }
        ).encode()
        + b"\n"
    )  # fmt: skip


def statistics(at_s: float, teller: Teller, transactions: int = 10, *, period_s: float = 10.0, **fields: Any) -> bytes:
    """A line of statistics."""
    known = {"lag_s_max": 0.5, "backlog_max": 3, "bytes": 100 * transactions, "current_seqno": int(at_s) + 1}
    return raw(at_s, teller, "statistics", transactions=transactions, period_s=period_s, **{**known, **fields})


def line(at_s: float, teller: Teller, event: str, **fields: Any) -> LogLine:
    """The same, read."""
    found = read_line(raw(at_s, teller, event, **fields))
    assert found is not None
    return found


def write(path: Path, lines: Iterable[bytes]) -> Path:
    """A file, compressed as its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(COMPRESSED.get(path.suffix, bytes)(b"".join(lines)))
    return path
