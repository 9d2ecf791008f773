"""Who must begin again for a changed setting to count: a daemon has the settings of its start.

Guarantees: every section of the table of settings (table.py) has its users here.
Leaves to others: which of them run. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

APPLICATION: Final = "application"
SOURCE: Final = "source"
RECEIVER: Final = "receiver"
UPDATE: Final = "update"
_DAEMONS: Final = (SOURCE, RECEIVER, UPDATE)
_ALL: Final = (*_DAEMONS, APPLICATION)

_OF_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "journal": _ALL,
    "source": (SOURCE,),
    "receiver": (RECEIVER,),
    "update": (UPDATE,),
    "packets": (),  # of each `packet`, and of `status`
    "tls": (SOURCE, RECEIVER),
    "loopback": (SOURCE, RECEIVER),
    "daemon": _DAEMONS,
    "status": (),  # of each `status`
    "log": _DAEMONS,
    "region": _ALL,
    "application": (APPLICATION,),
}
_OF_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "receiver.xoff_percent": (RECEIVER, UPDATE),  # which makes its batches by it
    "daemon.start_timeout_s": (),  # of each `start`
    "journal.archive_lag_bytes": (),  # of each `status`
}


def users_of(key: str) -> tuple[str, ...]:
    """The kinds of daemons, and APPLICATION, that have read a setting when they began; of a key that no release knows,
    nobody."""
    return _OF_KEYS.get(key, _OF_SECTIONS.get(key.partition(".")[0], ()))
