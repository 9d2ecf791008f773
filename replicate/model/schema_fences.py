"""When all suppliers stand aside, so that one of them may change the schema: a fence, told through the journals.

One says that it fences (`fenced`). Each other one that hears of it writes nothing more, and says so; and says it again
once it has heard that all do, for then it has all that was written, and has merged it (`stands`, the first and the
second time). Who has heard the second word of all has all that anybody wrote, and all that came of it: nothing is on
its way. So the one that fences may write, and change the schema, until it says that the others may (`unfenced`).

Guarantees: of two that fence at once one comes after the other. A word about an earlier fence counts for no later one.
Leaves to others: where this is kept (region/), who says what when (update_process/aside_for_schema.py). Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from replicate.errors import JournalDamagedError
from replicate.model.moment import wall_us
from replicate.model.transaction import FENCED, STANDS, UNFENCED

FIRST: Final = 1
"""It writes nothing more."""
SECOND: Final = 2
"""It has all that others wrote before they said the same."""


class Fence(Struct, frozen=True):
    """The last one of a supplier. `number`: a later one has a higher one. `is_once`: it ends with the first change of
    the schema. `first`, `second`: who has said that it stands aside, and who has said it again."""

    number: int
    is_open: bool = True
    is_once: bool = False
    first: frozenset[bytes] = frozenset()
    second: frozenset[bytes] = frozenset()


class Stand(NamedTuple):
    """What a supplier is to say now, to the one that fences."""

    fencer: bytes
    number: int
    turn: int


class Fences(Struct, frozen=True):
    """By the UUID of each that has ever fenced. Of all that ask, `known` are all suppliers that ever wrote, and
    `retired` those of them that are gone for good: nothing of theirs comes any more."""

    by: Mapping[bytes, Fence] = field(default_factory=dict)

    def told(self, values: Sequence[object]) -> Fences:
        """As a REGION change (OF_FENCES) says it. JournalDamagedError where it makes no sense."""
        what, fencer, number, *rest = values
        assert isinstance(fencer, bytes)
        assert isinstance(number, int)
        known = self.by.get(fencer)
        if what == FENCED:
            if known is not None and number <= known.number:
                raise JournalDamagedError("a supplier fences under a number that one of its fences had before")
            return self._with(fencer, Fence(number, is_once=bool(rest[0])))
        if known is None or known.number < number:
            raise JournalDamagedError("something is said about a fence that nobody has told of")
        if known.number > number or not known.is_open:
            return self  # of one that has ended
        if what == UNFENCED:
            return self._with(fencer, Fence(number, is_open=False))
        assert what == STANDS
        who, turn = rest
        assert isinstance(who, bytes)
        if turn == FIRST:
            return self._with(fencer, replace(known, first=known.first | {who}))
        return self._with(fencer, replace(known, second=known.second | {who}))

    def _with(self, fencer: bytes, fence: Fence) -> Fences:
        return Fences({**self.by, fencer: fence})

    def open(self, retired: Collection[bytes]) -> tuple[bytes, ...]:
        """Those that fence now, the one that comes first in front."""
        return tuple(sorted(one for one, fence in self.by.items() if fence.is_open and one not in retired))

    def next_number(self, own: bytes, csn: int) -> int:
        """Of the next fence of ours; `csn`: the time that the next transaction bears. One that was restored, and does
        not know its last fence, has a higher one all the same."""
        return max(self.by[own].number + 1 if own in self.by else 1, csn)

    def since_us(self, fencer: bytes) -> int:
        """When it began to fence, in microseconds since 1970."""
        return wall_us(self.by[fencer].number)

    def is_fencing(self, own: bytes) -> bool:
        """Whether we fence now."""
        return own in self.by and self.by[own].is_open

    def to_stand(self, own: bytes, known: Collection[bytes], retired: Collection[bytes]) -> tuple[Stand, ...]:
        """What we are to say now. One that fences itself, and comes first, ends that before it stands aside."""
        found = []
        for fencer in self.open(retired):
            if fencer == own:
                break
            fence = self.by[fencer]
            if own not in fence.first:
                found.append(Stand(fencer, fence.number, FIRST))
            elif own not in fence.second and fence.first.issuperset(_others(fencer, known, retired)):
                found.append(Stand(fencer, fence.number, SECOND))
        return tuple(found)

    def awaited(self, fencer: bytes, known: Collection[bytes], retired: Collection[bytes]) -> frozenset[bytes]:
        """Who has still to say that it stands aside, to one that fences now; where all have, who has still to say that
        it has all."""
        others, fence = _others(fencer, known, retired), self.by[fencer]
        return others - fence.first or others - fence.second

    def bars(self, own: bytes, known: Collection[bytes], retired: Collection[bytes]) -> bytes | None:
        """Whose fence keeps us from writing; also our own, while not all stand aside. None: we may."""
        fencing = self.open(retired)
        if not fencing:
            return None
        if fencing[0] == own and not self.awaited(own, known, retired):
            return None
        return fencing[0]

    def is_ours(self, own: bytes, known: Collection[bytes], retired: Collection[bytes]) -> bool:
        """Whether all others stand aside for us, and we have all."""
        return self.is_fencing(own) and self.bars(own, known, retired) is None


def _others(fencer: bytes, known: Collection[bytes], retired: Collection[bytes]) -> frozenset[bytes]:
    return frozenset(known) - frozenset(retired) - {fencer}
