"""Clocks of hosts that differ, as this one's Receiver Server sees them.

Guarantees: only of sources that are connected.
Leaves to others: what is measured (model/clock_skew.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from replicate.daemon.files import DaemonFiles
from replicate.instance.instance import Instance
from replicate.model.clock_skew import CLOCKS
from replicate.model.findings import Finding


def clock_findings(instance: Instance) -> Iterator[Finding]:
    """CLOCK_SKEW for each source whose host's clock is another than ours."""
    status = DaemonFiles(instance.path, "receiver").read_status()
    clocks = status.facts.get(CLOCKS) if status is not None and status.is_running else None
    for name, ahead_s in sorted(clocks.items()) if isinstance(clocks, dict) else ():
        if isinstance(ahead_s, int) and ahead_s:
            what = f"{abs(ahead_s)} s {'ahead of' if ahead_s > 0 else 'behind'} this host's"
            yield Finding(
                "CLOCK_SKEW",
                f"the clock of {name} is {what}: times, ages and lags that compare the two are wrong by that"
                + (", and of two changes at once the wrong one may count as later" if instance.is_supplier else ""),
                "set right whichever clock is wrong (timedatectl, chronyc tracking)",
                name,
            )
