"""What has become of each transaction of a lost file: a file beside it, FILE.settled, to which lines are added.

    {"format": 1, "instance": UUID}
    {"begun_at": N}                                                                  a run, and where the journal ended
    {"seqno": N, "how": "applied" | "overwritten" | "skipped" | "in history", "as": [NUMBERS]}
                                                                                     one for each that is settled
    {"ended": true}                                                                  the run has come to its end
    {"all": true}                                                                    the operator wants no more of it

Guarantees: a line counts once it is durable; a last line that a kill has cut off counts as not there.
Leaves to others: how anything is applied. That a commit came before its line, the journal tells (apply.py).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from replicate.errors import DamagedError, FormatUnknownError, WrongInstanceError
from replicate.system.files import open_to_read, sync_directory, write_all
from replicate.system.os_errors import io_error

FORMAT: Final = 1
SUFFIX: Final = ".settled"
APPLIED: Final = "applied"
OVERWRITTEN: Final = "overwritten"
SKIPPED: Final = "skipped"
IN_HISTORY: Final = "in history"
_ONE: Final = b'{"seqno":'
_ALL: Final = b'{"all":'


def count_settled(file: Path) -> int | None:
    """How many transactions of `file` are settled, None for all of them: by the lines' beginnings, so that a look at a
    long file is quick. OSError."""
    try:
        lines = open_to_read(file.with_name(file.name + SUFFIX))
    except FileNotFoundError:
        return 0
    count = 0
    with lines:
        for line in lines:
            if line.startswith(_ALL) and line.endswith(b"\n"):
                return None
            count += line.startswith(_ONE) and line.endswith(b"\n")
    return count


class Settled(Struct):
    """`how`: number of the transaction in the file -> what became of it. `search_from`: from where on commits may stand
    in the journal of which no line tells; 0 when nobody knows. `is_ended`: the run that began there was not killed."""

    path: Path
    instance: str
    how: dict[int, str] = field(default_factory=dict)
    is_all: bool = False
    search_from: int = 0
    is_ended: bool = False

    @classmethod
    def of(cls, file: Path, instance: str = "") -> Settled:
        """What stands beside `file`. WrongInstanceError when it was settled elsewhere than in `instance` (its UUID, ""
        for no matter where), FormatUnknownError, DamagedError, JournalIOError."""
        path = file.with_name(file.name + SUFFIX)
        made = cls(path, instance)
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return made
        except OSError as error:
            raise io_error(error, "what was settled cannot be read", str(path)) from error
        try:
            for facts in map(json.loads, lines):
                made._take(facts)
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(
                "what was settled is not readable",
                where=str(path),
                do="Move it away: the journal is searched then for what was applied",
            ) from error
        return made

    def _take(self, facts: dict[str, Any]) -> None:
        if "format" in facts:
            if facts["format"] != FORMAT:
                raise FormatUnknownError(
                    f"the file has format {facts['format']!r}, this release knows {FORMAT}", where=str(self.path)
                )
            if self.instance and facts["instance"] != self.instance:
                raise WrongInstanceError(
                    f"the file is being settled at instance {facts['instance']}",
                    where=str(self.path),
                    do="Go on there",
                )
            self.instance = facts["instance"]
        elif "begun_at" in facts:
            self.search_from, self.is_ended = facts["begun_at"] + 1, False
        elif "ended" in facts:
            self.is_ended = True
        elif "all" in facts:
            self.is_all = True
        else:
            self.how[facts["seqno"]] = facts["how"]

    def begin(self, last_seqno: int) -> None:
        """Before the first transaction is applied. `last_seqno`: where the journal ends; up to there it was searched.
        What was found of a killed run stays so, until this one notes it."""
        self._open()
        self._add({"begun_at": last_seqno})

    def end(self) -> None:
        """The run has come to its end."""
        self._add({"ended": True})

    def _open(self) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            self._add({"format": FORMAT, "instance": self.instance})

    def note(self, seqno: int, how: str, as_seqnos: Sequence[int] = ()) -> None:
        """One is settled, as those numbers of the journal here."""
        self._add({"seqno": seqno, "how": how, "as": list(as_seqnos)})

    def note_all(self) -> None:
        """The rest is not wanted."""
        self._open()
        self._add({"all": True})

    def _add(self, facts: dict[str, Any]) -> None:
        line = (json.dumps(facts) + "\n").encode()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)  # an operator may settle it while a run adds its lines
                data = os.pread(fd, os.fstat(fd).st_size, 0)
                end = data.rfind(b"\n") + 1  # after the last whole line
                os.ftruncate(fd, end)
                write_all(fd, line, end)
                os.fsync(fd)
            finally:
                os.close(fd)
            if not end:
                sync_directory(os.fspath(self.path.parent))
        except OSError as error:
            raise io_error(error, "what was settled cannot be noted", str(self.path)) from error
        self._take(facts)
