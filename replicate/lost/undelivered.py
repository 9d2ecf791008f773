"""What of an instance's transactions its peers have not got, and what an operator is told of it.

A transaction is *lost* with this instance when no registered peer has acknowledged it as durable: those above the
highest acknowledgement of any peer, or those above the journal's end that a secondary has received and not applied.
What one peer lacks and another one has is not lost, but told too. An instance without a peer loses nothing: its
databases hold all rows.

Guarantees: depends on its arguments alone; numbers are counted as `status` counts a backlog.
Leaves to others: files (lost/peers_lack.py), and what is done about it (lost/keep.py). Pure.
"""

from __future__ import annotations

from msgspec import Struct


class PeerPosition(Struct, frozen=True):
    """A registered peer, and up to which transaction everything that carries data is durable there."""

    name: str
    acknowledged_seqno: int


class Undelivered(Struct, frozen=True):
    """The facts. `oldest_seqno` to `readable_seqno` can be read in the journal; `last_seqno` is the last that is known
    to have been committed, `received_seqno` the last that was received (as large when nothing waits to be applied).

    `damage`: why the journal cannot be read beyond `readable_seqno`, "" when that is its end. `is_open`: and nothing
    tells how much stands there.
    """

    oldest_seqno: int
    readable_seqno: int
    last_seqno: int
    received_seqno: int
    peers: tuple[PeerPosition, ...] = ()
    damage: str = ""
    is_open: bool = False

    @property
    def first_lost_seqno(self) -> int:
        """The first that nobody else has; above `end_seqno` when there is none."""
        if not self.peers:
            return self.last_seqno + 1
        return max(self.oldest_seqno, 1 + max(peer.acknowledged_seqno for peer in self.peers))

    @property
    def end_seqno(self) -> int:
        """The last one of all."""
        return max(self.last_seqno, self.received_seqno)

    @property
    def is_lost(self) -> bool:
        """Whether anything would be lost with this instance, or may be."""
        return self.first_lost_seqno <= self.end_seqno or (self.is_open and bool(self.peers))

    @property
    def behind(self) -> tuple[PeerPosition, ...]:
        """The peers that lack what another peer has."""
        best = max((peer.acknowledged_seqno for peer in self.peers), default=0)
        return tuple(peer for peer in self.peers if peer.acknowledged_seqno < min(best, self.last_seqno))

    def told(self) -> str:
        """What is missing where, in one sentence for an operator."""
        said = []
        first = self.first_lost_seqno
        if self.peers and first <= self.last_seqno:
            verb = "is" if first == self.last_seqno else "are"
            said.append(f"{_counted(first, self.last_seqno)} {verb} on no peer")
        if self.received_seqno > self.last_seqno:
            said.append(f"{_counted(self.last_seqno + 1, self.received_seqno)} received and not yet applied")
        if self.damage:
            more = ", and nothing tells how much stands after that" if self.is_open else ""
            said.append(f"the journal can be read up to {self.readable_seqno}{more} ({self.damage})")
        if not self.is_lost:
            said += [self._lacks(peer) for peer in self.behind]
        elif self.peers:
            said += [_holds(peer) for peer in self.peers]
        return "; ".join(said)

    def _lacks(self, peer: PeerPosition) -> str:
        first = max(self.oldest_seqno, peer.acknowledged_seqno + 1)
        others = [one for one in self.peers if one.acknowledged_seqno >= first]
        known = " and ".join(f"{one.name} has those up to {one.acknowledged_seqno}" for one in others)
        return f"{peer.name} has not got {_range(first, self.last_seqno)}; {known}"


def _counted(first: int, last: int) -> str:
    count = last - first + 1
    return f"{count} transaction{'' if count == 1 else 's'} ({_range(first, last)})"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _holds(peer: PeerPosition) -> str:
    if not peer.acknowledged_seqno:
        return f"{peer.name} has none yet"
    return f"{peer.name} has those up to {peer.acknowledged_seqno}"
