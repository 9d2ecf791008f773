"""Up to where our journal is in its archive: one small file beside the consumers' positions, written by `archive`.

Guarantees: a process that prunes learns a number that the archive has durably reached; of another archive than the
configured one nothing is known, and so nothing counts as archived. A file is replaced whole; an old one only keeps more
journal. Leaves to others: what an archive is, and who makes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.errors import DamagedError, FormatUnknownError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.system.files import read_private, replace_file

FORMAT: Final = 1
NAME: Final = "_archive.json"
"""No peer can bear such a name."""


class ArchiveState(Struct, frozen=True):
    """What is known of the configured archive. `waiting_bytes`: of sealed segments that are not in it yet, on disk."""

    uri: str
    last_seqno: int
    waiting_bytes: int


def _path(instance: Instance) -> Path:
    return instance.consumers_directory / NAME


def note_archived(instance: Instance, seqno: int) -> None:
    """The configured archive durably holds everything up to `seqno`. JournalIOError; the old number stands then."""
    made = {"format": FORMAT, "uri": instance.config.journal.archive, "seqno": seqno}
    replace_file(_path(instance), (json.dumps(made) + "\n").encode())


def archived_seqno(instance: Instance) -> int | None:
    """Up to where the configured archive reaches, 0 when it was never written to; None when none is configured.

    DamagedError when the file makes no sense, FormatUnknownError.
    """
    uri = instance.config.journal.archive
    if not uri:
        return None
    path = _path(instance)
    try:
        facts = json.loads(read_private(path))
        if facts["format"] != FORMAT:
            raise FormatUnknownError(
                f"the file has format {facts['format']!r}, this release knows {FORMAT}",
                where=str(path),
                do="Use the release that wrote it, or a newer one",
            )
        return max(0, int(facts["seqno"])) if facts["uri"] == uri else 0
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedError(
            "how far the archive reaches is not readable",
            where=str(path),
            do="Remove the file and run: replicate -i INSTANCE archive",
        ) from error


def look_at_archive(instance: Instance) -> ArchiveState | None:
    """For a status; None when no archive is configured. Raises as `archived_seqno`; JournalIOError."""
    seqno = archived_seqno(instance)
    if seqno is None:
        return None
    chain = Chain(instance.journal_directory)
    waiting = 0
    for first in chain.first_seqnos()[:-1]:
        if first > seqno:
            try:
                waiting += os.stat(chain.path_of(first)).st_blocks * 512
            except FileNotFoundError:
                pass  # pruned meanwhile
    return ArchiveState(instance.config.journal.archive, seqno, waiting)
