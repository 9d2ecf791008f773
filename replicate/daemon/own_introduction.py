"""What an instance says of itself in its HELLO.

Guarantees: it is what the instance file says at this moment.
Leaves to others: connections, and what the peer makes of it (wire/introduction.py).
"""

from __future__ import annotations

import time
from typing import Final

import replicate
from replicate.instance.instance import Instance
from replicate.limits import BATCH_BYTES_MAX
from replicate.model.subscription import Rows
from replicate.model.takeover import Takeover
from replicate.wire.features import FEATURES
from replicate.wire.message import Introduction

FILTER_CHARACTERS_MAX: Final = 500
"""A hello is small."""
NAMES_BYTES_MAX: Final = 1500
"""Of the names of partitions in it, and the filters beside them."""


def packed_rows(rows: Rows) -> tuple[str, ...]:
    """As an Introduction tells them; `rows_told` reads it."""
    return tuple(text for key, condition in sorted(rows.items()) for text in (*key, condition))


def rows_told(told: tuple[str, ...]) -> Rows:
    """The conditions that a peer has told."""
    return {(told[at], told[at + 1]): told[at + 2] for at in range(0, len(told), 3)}


def introduction(
    instance: Instance,
    heartbeat_period_s: float,
    told_by: str = "",
    takeovers: tuple[Takeover, ...] = (),
    *,
    is_seeded: bool = False,
    is_source: bool = False,
) -> Introduction:
    """The Introduction of `instance`. `heartbeat_period_s`: how often it gives a sign of life. `told_by`: filters.
    `takeovers`: what it can show another primary. `is_seeded`: a seed of all is wanted, by the rows that are wanted.
    `is_source`: it says how it calls its partitions."""
    content = instance.content
    filters = told_by[:FILTER_CHARACTERS_MAX]
    return Introduction(
        network=content.network,
        instance=content.uuid,
        name=content.name,
        role=content.told_role,
        incarnation=content.incarnation,
        release=replicate.__version__,
        features=FEATURES,
        batch_bytes_max=BATCH_BYTES_MAX,
        heartbeat_period_ms=max(1, round(heartbeat_period_s * 1000)),
        wall_ns=time.time_ns(),
        filter=filters,
        takeovers=takeovers if content.told_role == "primary" else (),
        rows=packed_rows(content.rows if is_seeded else content.held_rows) if content.role == "secondary" else (),
        names=content.partitions.told(NAMES_BYTES_MAX - len(filters.encode())) if is_source else (),
    )
