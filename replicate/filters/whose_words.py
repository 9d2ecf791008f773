"""In whose words a secondary holds what it holds: the source that it was filled from, and the filters on the way.

    run/filter.json    {"format": 1, "source": UUID, "name": NAME, "filter": IDENTITIES}

Guarantees: nothing is written where no filter ever was. A source with another filter than the one before it is refused
by name; the same source may change its filter, since an operator has done that. A new copy ends what is noted.
Leaves to others: what the two sides say of themselves (wire/introduction.py). Blocks on the disk, for one small file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate.errors import ReplicateError
from replicate.system.files import read_private, replace_file

NAME: Final = "filter.json"
FORMAT: Final = 1


class Content(Struct, frozen=True):
    """`source`: the UUID of the instance that sent it, in hexadecimal, and its `name`; `filter`: identities, in the
    order in which the stream went through them, "" for none."""

    source: str
    name: str
    filter: str


def told_by(*identities: str) -> str:
    """Several filters after each other."""
    return " > ".join(identity for identity in identities if identity)


def read_content(run_directory: Path) -> Content | None:
    """What is noted; None where nothing is, or nothing that can be read."""
    try:
        facts: dict[str, Any] = json.loads(read_private(run_directory / NAME))
        if facts.pop("format") != FORMAT or not all(type(value) is str for value in facts.values()):
            return None
        return Content(**facts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ReplicateError):
        return None


def mismatch(known: Content | None, now: Content) -> str:
    """Why what a source sends now cannot go on what is here; "" when it can."""
    if known is None or known.source == now.source or known.filter == now.filter:
        return ""
    return (
        f"what is here came from {known.name} through {known.filter or 'no filter'}; {now.name} sends it through "
        f"{now.filter or 'no filter'}"
    )


def note_content(run_directory: Path, known: Content | None, now: Content) -> None:
    """Keep it, if it is news, and if there is or was a filter. JournalIOError and its kin."""
    if known != now and (known is not None or now.filter):
        facts = {"format": FORMAT, "source": now.source, "name": now.name, "filter": now.filter}
        replace_file(run_directory / NAME, (json.dumps(facts) + "\n").encode())


def forget_content(run_directory: Path) -> None:
    """The secondary is filled again."""
    with suppress(FileNotFoundError):
        (run_directory / NAME).unlink()
