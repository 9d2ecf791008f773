"""The commands that start and stop a daemon, as every error, finding and hint prints them: one place for all.

Guarantees: a command can be pasted as it stands, quoted for a shell; it gives the settings that it is handed, so that a
daemon comes back as it ran; `-i INSTANCE` stands for the instance that the text is about (errors.py).
Leaves to others: which settings a daemon ran with (daemon/last_run.py). Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from replicate.settings.load import SETTINGS, shown
from replicate.settings.table import Scalar

NOTHING: Final[Mapping[str, Scalar]] = MappingProxyType({})
_FLAGS: Final = {"receiver": {"receiver.listen": "--listen", "receiver.allow": "--allow"}}
"""By the kind of daemon: which settings have a flag of their own."""


def start_command(name: str, given: Mapping[str, Scalar] = NOTHING, *, of: str = "INSTANCE") -> str:
    """What starts the daemon `name` (`receiver`, `update`, `source-PEER`) of the instance `of` with these settings.

    `of` is quoted already, as `Instance.named` is."""
    flags = _FLAGS.get(kind_of(name), {})
    words = []
    for key, value in given.items():
        words += [flags[key], text_of(key, value)] if key in flags else ["--set", f"{key}={text_of(key, value)}"]
    return " ".join([_command(name, "start", of), *map(shlex.quote, words)])


def stop_command(name: str, *, of: str = "INSTANCE") -> str:
    """What stops it."""
    return _command(name, "stop", of)


def again_command(name: str, given: Mapping[str, Scalar] = NOTHING, *, of: str = "INSTANCE") -> str:
    """What stops it and starts it."""
    return f"{stop_command(name, of=of)}; {start_command(name, given, of=of)}"


def kind_of(name: str) -> str:
    """`source`, `receiver` or `update`: the verb's noun, and the section of the daemon's settings."""
    return name.partition("-")[0]


def text_of(key: str, value: Scalar) -> str:
    """The value of a setting as a flag takes it: a size in its largest whole unit, such as 64MiB."""
    if key in SETTINGS and SETTINGS[key].facts.unit == "bytes":
        return shown(SETTINGS[key], value).strip('"').replace(" ", "")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _command(name: str, verb: str, of: str) -> str:
    peer = name.partition("-")[2]
    return f"replicate -i {of} {kind_of(name)} {verb}" + (f" --peer {shlex.quote(peer)}" if peer else "")
