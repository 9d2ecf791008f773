"""How an instance introduces itself to a peer.

Guarantees: what is said is what the instance file says at this moment.
Refuses to know: connections, and what the peer makes of it (wire/introduction.py).
"""

from __future__ import annotations

import time

import replicate
from replicate.instance.instance import Instance
from replicate.wire.message import Introduction


def introduction(instance: Instance, heartbeat_period_s: float) -> Introduction:
    """What the HELLO of `instance` says. `heartbeat_period_s`: how often it will give a sign of life."""
    content = instance.content
    return Introduction(
        network=content.network,
        instance=content.uuid,
        name=content.name,
        role=content.role,
        incarnation=content.incarnation,
        release=replicate.__version__,
        heartbeat_period_ms=max(1, round(heartbeat_period_s * 1000)),
        wall_ns=time.time_ns(),
    )
