"""Other instances in findings: which of them are on this host, and how the reader can type them.

A finding writes `-i NAME` for another instance of the network. That can be typed where NAME is found by its name. The
one beside this one on the same host is named by its directory; of any other one the finding says on which host it is.

Guarantees: only looks, and never raises; what cannot be read is not here.
Leaves to others: what the findings say (report.py, comparing.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.instance.file import read_file
from replicate.instance.instance import FILE_NAME, Instance
from replicate.instance.location import resolve_instance
from replicate.settings.load import Address


class OtherInstance(Struct, frozen=True):
    """Another instance. `typed`: what names it in a command on this host, quoted for a shell; "" where it is not found
    here. `host`: where it is then, "" for unknown."""

    name: str
    typed: str = ""
    host: str = ""

    @property
    def place(self) -> str:
        """Where its commands are typed, for one that is not found here."""
        if self.host and Address(self.host, 0).is_loopback:
            return f"{self.name} is on this host: give its directory for the name"
        host = f"on host {self.host}" if self.host else "on another host"
        return f"{self.name} is {host}, by its name or its directory there"


def look_for(instance: Instance, hosts: Mapping[str, str]) -> tuple[OtherInstance, ...]:
    """The others of these names ("" and its own are none), with their hosts, "" for unknown."""
    names = (name for name in hosts if name and name != instance.name)
    return tuple(OtherInstance(name, _typed(instance, name), hosts[name]) for name in names)


def placed(text: str, others: Iterable[OtherInstance]) -> str:
    """`text`, with what can be typed for the others that it names, and where those are that are not here. Pure."""
    notes = []
    for other in others:
        named = re.compile(rf"(?<=-i ){re.escape(other.name)}(?=\s|\Z)|(?<=--with ){re.escape(other.name)}(?=[\s;]|\Z)")
        if not named.search(text):
            continue
        if other.typed:
            text = named.sub(other.typed.replace("\\", r"\\"), text)
        else:
            notes.append(other.place)
    return f"{text} ({'; '.join(notes)})" if notes else text


def _typed(instance: Instance, name: str) -> str:
    try:
        by_name = resolve_instance(name)
    except ReplicateError:
        return ""
    if _is_it(by_name, instance, name):
        return name
    beside = instance.path.parent / name
    return shlex.quote(str(beside)) if _is_it(beside, instance, name) else ""


def _is_it(path: Path, instance: Instance, name: str) -> bool:
    try:
        content = read_file(path / FILE_NAME)
    except (ReplicateError, OSError):
        return False
    return content.name == name and content.network == instance.content.network
