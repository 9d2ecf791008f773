"""The journals that a replay reads: one directory or several, of a primary that lives or is gone, or copies of them.

Guarantees: transactions come in their order, verified, whatever directory holds them; nothing above the bound that was
asked for is read; a hole between the directories is refused by both numbers. That they continue one another (also
across directories) is proven by the chain hashes, which the caller verifies.
Refuses to know: what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from replicate.errors import GapError, JournalMissingError, NotFoundError
from replicate.journal.chain import Chain
from replicate.journal.durable import SIDECAR_NAME, DurableSidecar
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch
from replicate.limits import BATCH_BYTES_MAX


def journal_directory(path: Path) -> Path:
    """The directory that holds the segments: `path` itself, or `journal` in the instance `path`. NotFoundError."""
    if not path.is_dir():
        raise NotFoundError("there is no such directory", where=str(path), do="Name a directory of journal segments")
    for directory in (path, path / "journal"):
        if directory.is_dir() and Chain(directory).first_seqnos():
            return directory
    raise NotFoundError("no journal segment is here", where=str(path), do="Name a directory of journal segments")


class Journals:
    """The journals at `paths`, all of the network `network`."""

    def __init__(self, paths: Sequence[Path], network: bytes) -> None:
        """Look at each. NotFoundError, WrongNetworkError, JournalDamagedError, FormatUnknownError."""
        self.directories = [journal_directory(path) for path in paths]
        self.chains = [Chain(directory, network=network) for directory in self.directories]
        self._ends = [_end(chain) for chain in self.chains]

    @property
    def last_seqno(self) -> int:
        """The last transaction that the journals hold whole."""
        return max(whole for _, whole in self._ends)

    @property
    def last_durable_seqno(self) -> int:
        """The last one that is known to be on their primary's disk: what a secondary may hold without getting ahead."""
        return max(durable for durable, _ in self._ends)

    def oldest_seqno(self) -> int:
        """The first transaction that any of them holds."""
        return min(chain.oldest_seqno() for chain in self.chains)

    def read(
        self, next_seqno: int, last_seqno: int, *, max_bytes: int = BATCH_BYTES_MAX
    ) -> Iterator[FrameBatch | LargeTransaction]:
        """Everything from `next_seqno` to `last_seqno`. JournalMissingError (pruned), GapError, FrameDamaged,
        JournalDamagedError, named with file and offset; what came before it has been given."""
        while next_seqno <= last_seqno:
            chain, bound = self._holding(next_seqno, last_seqno)
            with closing(ChainReader(chain, next_seqno)) as reader:
                while (found := reader.read(max_bytes, bound)) is not None:
                    yield found
                next_seqno = reader.next_seqno

    def spans(self, first_seqno: int, last_seqno: int) -> list[tuple[Path, int, int]]:
        """Which directory holds what of a range, in order. Raises as `read`."""
        found = []
        while first_seqno <= last_seqno:
            chain, bound = self._holding(first_seqno, last_seqno)
            found.append((Path(chain.directory), first_seqno, bound))
            first_seqno = bound + 1
        return found

    def _holding(self, seqno: int, last_seqno: int) -> tuple[Chain, int]:
        """The chain that holds `seqno` and goes furthest, and how far."""
        best: tuple[Chain, int] | None = None
        for chain, (_, whole) in zip(self.chains, self._ends, strict=True):
            holds = chain.oldest_seqno() <= seqno <= whole
            if holds and (best is None or whole > best[1]):
                best = (chain, whole)
        if best is not None:
            return best[0], min(best[1], last_seqno)
        where = ", ".join(map(str, self.directories))
        if seqno < self.oldest_seqno():
            raise JournalMissingError(
                f"transaction {seqno} is needed first, the oldest in these journals is {self.oldest_seqno()}",
                where=where,
                do="Name older segments with a further --journal, or seed this secondary anew",
                seqno=seqno,
            )
        raise GapError(f"transaction {seqno} is in none of these journals", where=where, expected=seqno)


def _end(chain: Chain) -> tuple[int, int]:
    """The last durable seqno as far as is known, and the last whole one."""
    _, scan = chain.scan_last()
    try:
        with closing(DurableSidecar(Path(chain.directory) / SIDECAR_NAME)) as sidecar:
            durable = sidecar.read()
    except JournalMissingError:
        durable = scan.last_seqno  # copied segments: what is whole in them was written there
    return min(max(durable, scan.last_mark), scan.last_seqno), scan.last_seqno
