"""SQLite as a kind of region: where each thing that region/protocol.py asks for is found.

Guarantees: it opens what it is asked for, as the protocol says, and loads what only an application or an applier
needs when one is opened. Leaves to others: everything but the way there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import apsw

from replicate.region.sqlite.checkpoint import checkpoint, sync_wal
from replicate.region.sqlite.forensics.older_than_wal import may_have_frames
from replicate.region.sqlite.open import check_same_file, note_held, region_facts
from replicate.region.sqlite.open_region import Naming, open_to_read

if TYPE_CHECKING:
    from replicate.region.sqlite.applying import AppliedFile
    from replicate.region.sqlite.recovering import MendedFile
    from replicate.region.sqlite.snapshot import OpenRegions
    from replicate.region.sqlite.writing import FileWriter

Path = str | os.PathLike[str]


class SqliteKind:
    """A `RegionKind`. It has no state."""

    Error: Final = apsw.Error
    naming = Naming
    reader = staticmethod(open_to_read)
    facts = staticmethod(region_facts)
    check_same_file = staticmethod(check_same_file)
    may_be_older = staticmethod(may_have_frames)
    note_held = staticmethod(note_held)
    sync = staticmethod(sync_wal)
    flush = staticmethod(checkpoint)

    def writer(self, path: Path, *, region: bytes, writable: bool, opening_s: float) -> FileWriter:
        """A region that an application writes, or reads."""
        from replicate.region.sqlite.writing import FileWriter

        return FileWriter(path, region=region, writable=writable, opening_s=opening_s)

    def applied(self, path: Path, *, region: bytes) -> AppliedFile:
        """A region of a secondary."""
        from replicate.region.sqlite.applying import AppliedFile

        return AppliedFile(path, region=region)

    def mended(self, path: Path, *, region: bytes) -> MendedFile:
        """A region in recovery."""
        from replicate.region.sqlite.recovering import MendedFile

        return MendedFile(path, region=region)

    def gave_way(self, losses: Sequence[bytes]) -> bool:
        """Of what was lost by a merge."""
        from replicate.region.sqlite.row_stamps import gave_way

        return gave_way(losses)

    def held(self, paths: Mapping[str, tuple[Path, bytes]]) -> OpenRegions:
        """Regions at one moment."""
        from replicate.region.sqlite.snapshot import OpenRegions

        return OpenRegions.open(paths)
