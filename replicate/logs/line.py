"""One line of a log: an event of a daemon with its moment, or something that is none of ours.

Guarantees: any bytes give a LogLine or None, and never an error; what a LogLine says has the types that it names.
Leaves to others: what events mean (story.py), and where lines come from (files.py). Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from replicate.model.moment import stamp_us

_DAEMON: Final = re.compile(r"(source-.+|receiver|update)\Z")
US: Final = 1_000_000
YEAR_9999_US: Final = 253_370_764_800 * US
NAME_CHARACTERS_MAX: Final = 4096


class Teller(Struct, frozen=True):
    """The daemon that has written a line: of which host ("": the line is older than that word), of which instance."""

    host: str
    instance: str
    daemon: str

    @property
    def name(self) -> str:
        """As people call it, where instances have names of their own."""
        return f"{self.instance.rstrip('/').rpartition('/')[2] or self.instance}/{self.daemon}"

    @property
    def kind(self) -> str:
        """`source`, `receiver` or `update`."""
        return self.daemon.partition("-")[0]


class LogLine(Struct, frozen=True):
    """An event. `at_us`: by the clock of its host."""

    at_us: int
    teller: Teller
    pid: int
    event: str
    fields: Mapping[str, Any]

    def number(self, name: str) -> float | None:
        """A field that is a number, not negative; else None."""
        value = self.fields.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        return value if 0 <= value < 2**64 else None

    def count(self, name: str) -> int:
        """A field that counts something; 0 where it is not there."""
        return int(self.number(name) or 0)

    def text(self, name: str) -> str:
        """A field as a text, "" where it is none."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""


def read_line(line: bytes) -> LogLine | None:
    """What a daemon has logged; None for anything else: a line of another program, a torn one."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    words = [found.get(name) for name in ("event", "timestamp", "daemon", "instance")]
    if not all(isinstance(one, str) and len(one) <= NAME_CHARACTERS_MAX for one in words):
        return None
    event, stamp, daemon, instance = map(str, words)
    at_us = stamp_us(stamp)
    if at_us is None or not 0 <= at_us < YEAR_9999_US or _DAEMON.match(daemon) is None:
        return None
    host, pid = found.get("host"), found.get("pid")
    teller = Teller(host if isinstance(host, str) else "", instance, daemon)
    return LogLine(at_us, teller, pid if isinstance(pid, int) else 0, event, found)
