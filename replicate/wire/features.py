"""Which versions of the protocol there are, and which features two sides may find that they share.

Guarantees: any two releases can say who they are; a name that is not known is ignored, never guessed at.
Leaves to others: what is said (message.py), who says what when (state.py). Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Protocol(NamedTuple):
    """A version of this protocol. Two that differ in `major` cannot talk: refused by name. Of two minor versions the
    lower one is spoken; a later one only adds features and fields at the end, each used when both sides know it.

    What never changes, so that any two releases can say who they are: the wire frame, REFUSE, and that a hello begins
    with these two numbers and the introduction as it is.
    """

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


PROTOCOL: Final = Protocol(1, 2)
"""The one that this release speaks; any lower minor version of it too. 1.1: seeding over the connection. 1.2: lost
files, roles that are exchanged over it, and transactions told in other words."""

FEATURE_ZSTD: Final = "zstd"
FEATURE_SEED: Final = "seed-1"
"""A source that can send a seed file of format 1 over the connection."""
FEATURE_SEED_REGIONS: Final = "seed-2"
"""A source that can send one of some regions (format 2) beside the stream."""
FEATURE_LOST: Final = "lost-1"
"""A source that takes lost files of format 1 beside the stream."""
FEATURE_ROLES: Final = "roles-1"
"""One that can hand its role over, and take one."""
FEATURE_FILTER: Final = "filter-1"
"""One that knows transactions told in other words (frames of the kinds RESTATED and RESTATED_LARGE)."""
FEATURE_PATROL: Final = "patrol-1"
"""A receiver that verifies digests of ranges."""
FEATURE_PARTITIONS: Final = "partitions-1"
"""One that knows frames of the kind MIXED, and as a source sends the partitions that a RESTART wants."""
FEATURE_SEED_PARTITIONS: Final = "seed-3"
"""A source that can send a seed of some partitions beside the stream."""
FEATURE_ELEMENTS: Final = "elements-1"
"""A receiver that knows definitions which come without the statement that made them."""
FEATURE_ROWS: Final = "rows-1"
FEATURE_COLUMNS: Final = "columns-1"
"""A source that sends of a table the rows of a condition, or the columns, that the receiver's hello names."""
FEATURES: Final = (
    FEATURE_ZSTD, FEATURE_SEED, FEATURE_LOST, FEATURE_ROLES, FEATURE_FILTER, FEATURE_SEED_REGIONS, FEATURE_PATROL,
    FEATURE_PARTITIONS, FEATURE_SEED_PARTITIONS, FEATURE_ELEMENTS, FEATURE_ROWS, FEATURE_COLUMNS,
)  # fmt: skip
"""Features that this release knows; used when both sides name them. An unknown name is ignored, never guessed at."""
FEATURE_SINCE: Final = {**dict.fromkeys(FEATURES, 2), FEATURE_ZSTD: 0, FEATURE_SEED: 1}
"""The first minor version in which a feature may be used."""

assert FEATURE_SINCE.keys() == set(FEATURES)
