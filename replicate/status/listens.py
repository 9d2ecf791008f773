"""Where the Receiver Server that runs listens, and what follows from it where no source comes.

A Receiver Server that was started before its address was set listens well and alone: on loopback, where no other host
reaches it. Both sites then show that the other one does not answer, and neither shows why.

Guarantees: a command that is told has a start come about that listens where the settings say.
Leaves to others: who wants to connect, and from where. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.model.start_command import again_command
from replicate.settings.load import parse_address

_WHERE: Final = "receiver.listen"


class Listens(Struct, frozen=True):
    """`at`: its HOST:PORT, "" where it does not run, or does not say. `settings`: what they say by now, where that is
    another address; "" where it is not, or the last run was given its address on the command line. `is_reached`: a
    source has been heard there."""

    at: str = ""
    settings: str = ""
    is_reached: bool = False

    @property
    def text(self) -> str:
        """For a finding, after what it says of the missing source."""
        if self.settings:
            return f"; the Receiver Server listens on {self.at}, and the settings have {self.settings} by now"
        if self._is_alone:
            return f"; the Receiver Server listens on {self.at}, which no other host reaches"
        return f"; the Receiver Server listens on {self.at}" if self.at else ""

    def do(self, source: str) -> str:
        """What to do. `source`: the name of the one that is missed, as a command has it, of several with commas between
        them; "" where it never came."""
        names = (source or "PRIMARY").split(", ")
        where = "there" if len(names) > 1 else "on the primary"
        look = f"{where}: {'; '.join(f'replicate -i {one} source status' for one in names)}"
        again = again_command("receiver")
        if self.settings:
            return again
        if self._is_alone:
            there = f"replicate -i INSTANCE config set receiver.listen HOST:PORT; {again}"
            return f"{look}; where that is another host: {there}"
        return look

    @property
    def _is_alone(self) -> bool:
        try:
            return bool(self.at) and not self.is_reached and parse_address(self.at, where=_WHERE).is_loopback
        except ReplicateError:
            return False


def listens(at: object, settings: str, *, is_given: bool, is_reached: bool = False) -> Listens:
    """`at`: what it says itself; `settings`: receiver.listen; `is_given`: the last run was given its address."""
    if not isinstance(at, str) or not at:
        return Listens()
    try:
        runs, wanted = parse_address(at, where=_WHERE), parse_address(settings, where=_WHERE)
    except ReplicateError:
        return Listens(at, "", is_reached)
    host = "127.0.0.1" if wanted.host == "localhost" else wanted.host
    is_same = runs.host == host and wanted.port in (0, runs.port)
    return Listens(at, "" if is_same or is_given else settings, is_reached)
