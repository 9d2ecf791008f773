"""How many connections may be open: in all, and from one address, so that one host can not keep the others out.

Guarantees: a connection that was let in counts until it leaves; memory is bounded by the connections that are open.
Refuses to know: sockets, clocks, who the peers are. Pure.
"""

from __future__ import annotations

from collections import Counter


class Gate:
    """Counts the connections of one listener."""

    def __init__(self, connections_max: int, per_address_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._by_address: Counter[str] = Counter()
        self.connections = 0

    def enter(self, address: str) -> str:
        """Let one in: "" when it is; else why not, CONNECTIONS_MAX or CONNECTIONS_PER_ADDRESS_MAX."""
        if self.connections >= self._connections_max:
            return "CONNECTIONS_MAX"
        if self._by_address[address] >= self._per_address_max:
            return "CONNECTIONS_PER_ADDRESS_MAX"
        self.connections += 1
        self._by_address[address] += 1
        return ""

    def leave(self, address: str) -> None:
        """One that was let in has gone."""
        self.connections -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
