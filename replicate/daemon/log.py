"""Logs of the daemons: JSON lines into one file each, and a readable rendering on a terminal.

Guarantees: logging never fails and never blocks its caller for good: a full disk or a closed pipe loses lines, counts
them, and says how many once writing works again. A line is one `write` in append mode, so lines of two processes do not
mix. `reopen` follows a rename by a rotation tool. Values of rows are left out unless the configuration allows them.
Leaves to others: what is worth logging, and who reads it.

Loggers are wrapped here, not configured globally: an application that uses structlog itself keeps its own set-up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

LEVELS: Final[Mapping[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

ROW_FIELDS: Final = frozenset(
    {"row", "rows", "key", "keys", "values", "before", "after", "before_image", "after_image", "found"}
)
"""Fields that carry what users stored; see `log.row_values`."""


class LogFile:
    """An append-only file of lines. Not for several threads at once, save that each line is one write."""

    def __init__(self, path: Path) -> None:
        """Opens (creates, 0600) the file; raises OSError, since a daemon must not begin without its log."""
        self._path = path
        self._fd = self._open()
        self.lost_lines = 0

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._path, flags, 0o600)

    def reopen(self) -> None:
        """Go on in a new file of the same name. Raises OSError if it cannot be opened: the old one stays."""
        fd = self._open()
        old, self._fd = self._fd, fd
        os.close(old)

    def write_line(self, line: str) -> None:
        """Append one line. Never raises: what cannot be written is counted in `lost_lines`."""
        if self.lost_lines:
            note = {"event": "log lines lost", "level": "warning", "lost_lines": self.lost_lines}
            if not self._put(json.dumps(note)):
                self.lost_lines += 1
                return
            self.lost_lines = 0
        if not self._put(line):
            self.lost_lines += 1

    def _put(self, line: str) -> bool:
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        try:
            written = os.write(self._fd, data)
            if written == len(data):
                return True
            # A short write means a nearly full disk. Close the torn line, so that the next one can be read.
            with suppress(OSError):
                os.write(self._fd, b"\n")
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close the descriptor; later lines are lost and counted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Outlet:
    """What structlog calls with the event: renders it for the file, and for the terminal if there is one."""

    def __init__(self, file: LogFile | None, console: TextIO | None) -> None:
        self._file = file
        self._console = console
        self._render = structlog.dev.ConsoleRenderer(colors=console is not None and console.isatty())

    def _log(self, event: EventDict) -> None:
        if self._file is not None:
            self._file.write_line(json.dumps(event, default=repr))
        if self._console is not None:
            name = str(event.get("level", "info"))
            try:
                print(self._render(None, name, dict(event)), file=self._console, flush=True)
            except (OSError, ValueError):  # the terminal is gone, or closed, or cannot show a character
                self._console = None

    debug = info = warning = error = critical = exception = msg = _log


def make_logger(
    *,
    daemon: str,
    instance: str,
    level: str,
    row_values: bool,
    file: LogFile | None = None,
    console: TextIO | None = None,
) -> FilteringBoundLogger:
    """A logger bound with daemon, instance, host and pid. Fields that JSON does not know are written as their repr."""

    def without_rows(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
        if not row_values:
            for field in ROW_FIELDS.intersection(event):
                event[field] = "(left out, see log.row_values)"
        return event

    def as_argument(_logger: WrappedLogger, _name: str, event: EventDict) -> tuple[tuple[EventDict], dict[str, Any]]:
        return (event,), {}

    logger = structlog.wrap_logger(
        _Outlet(file, console),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            without_rows,
            as_argument,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    return cast(FilteringBoundLogger, logger.bind(daemon=daemon, instance=instance, host=host(), pid=os.getpid()))


def host() -> str:
    """The name of this host, by which lines of several hosts are told apart."""
    return socket.gethostname()


def terminal() -> TextIO | None:
    """Standard error if a person looks at it, else None."""
    with suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            return sys.stderr
    return None
