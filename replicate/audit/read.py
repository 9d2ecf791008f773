"""Reading a stretch of a chain for what a selection asks of it: frames by their heads, and only what may match decoded.

Guarantees: every frame that is passed has the right check and number; a transaction is decoded once at most, many in
one call; the first frame that does not verify raises when all before it have been given. What is in force at a
transaction is known with it. Memory holds one batch, whatever the stretch or a single transaction holds, also where the
newest comes first.
Leaves to others: what is asked for (selection.py), where a query begins and ends (query.py), what is told of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from replicate.audit.selection import Chooser, Selection
from replicate.errors import DamagedError, JournalDamagedError
from replicate.journal.backwards import changes_backwards
from replicate.journal.catalogue import catalogue_with, with_frame
from replicate.journal.chain import Chain
from replicate.journal.frame import AUDITED, FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    CHANGES_BEGIN,
    DEFINE_MARK,
    UNPACK_ERRORS,
    FrameBatch,
    decode_batch,
    read_head,
    read_part,
    unpacker,
)
from replicate.journal.walk import DEFINITION, may_define
from replicate.limits import BATCH_BYTES_MAX, MIB
from replicate.model.transaction import Catalogue, DefinitionChange, Kind, Op, TableDefinition, decode_change
from replicate.model.vector import U64_MAX

_HISTORY: Final = int(Kind.HISTORY)
_PIECE_BYTES: Final = MIB
_NOTHING: Final = Selection(first_csn=U64_MAX, last_csn=0)
"""For a look at what is defined."""


class Frames(NamedTuple):
    """Frames of one batch that may be asked for, by the head and by what occurs in them.

    `places`: where each begins and ends in `data`; `chooser`: for what is in force at each of them; `catalogue`: after
    the last one."""

    data: bytes
    places: list[tuple[int, int]]
    chooser: Chooser
    catalogue: Catalogue


class Match(NamedTuple):
    """A transaction asked for. `body`: kind, seqno, mark, chain, origin, origin_seqno, csn, payload … (of a large one,
    its commit's). `chooser`, `catalogue`: for what is in force after it (of a large one, before it). `large`: its
    parts."""

    body: Sequence[Any]
    frame_bytes: int
    chooser: Chooser
    catalogue: Catalogue
    large: LargeTransaction | None = None

    @property
    def seqno(self) -> int:
        return int(self.body[1])


class StretchReader:
    """One place in a chain, from which what is asked for is read. Holds one descriptor; `close` it."""

    def __init__(self, chain: Chain, next_seqno: int, selection: Selection) -> None:
        self._reader = ChainReader(chain, next_seqno)
        self._selection = selection
        self._catalogue: Catalogue | None = None

    def close(self) -> None:
        """Let go of the descriptor."""
        self._reader.close()

    @property
    def next_seqno(self) -> int:
        """The first number not yet read."""
        return self._reader.next_seqno

    def matches(self, last_seqno: int) -> Iterator[Match]:
        """What is asked for up to `last_seqno`, in order. What `ChainReader.read` raises, and JournalDamagedError for
        content that makes no sense."""
        for found in self.frames(last_seqno):
            if isinstance(found, Match):
                if takes_large(found):
                    yield found
            else:
                yield from decoded(found)

    def frames(self, last_seqno: int) -> Iterator[Frames | Match]:
        """The same, not yet decoded; and each large transaction in time, whether or not its changes are asked for."""
        if self._reader.next_seqno > last_seqno:
            return
        if self._catalogue is None:
            self._catalogue = self._reader.catalogue_at(self._reader.next_seqno)
        chooser = Chooser(self._selection, self._catalogue.definitions)
        while (found := self._reader.read(BATCH_BYTES_MAX, last_seqno)) is not None:
            if isinstance(found, LargeTransaction):
                made = _of_large(found, chooser, self._catalogue)
                if _head_is_asked_for(self._selection, made.body):
                    yield made
                self._catalogue = self._reader.catalogue_at(found.seqno + 1)
                chooser = Chooser(self._selection, self._catalogue.definitions)
                continue
            for frames in _sifted(found, chooser, self._catalogue):
                chooser, self._catalogue = frames.chooser, frames.catalogue
                if frames.places:
                    yield frames


def matches_backwards(chain: Chain, first: int, last: int, selection: Selection) -> Iterator[Match]:
    """What is asked for from `first` to `last`, both of which the chain holds, the newest first; segment by segment, so
    that no older one is read than is asked for. Raises as `StretchReader.matches`; damage is found before anything
    of its segment is given."""
    for begin in reversed([number for number in chain.first_seqnos() if number <= last]):
        if begin <= last:
            yield from _segment_backwards(chain, max(first, begin), last, selection)
        last = begin - 1
        if last < first:
            return


def _segment_backwards(chain: Chain, first: int, last: int, selection: Selection) -> Iterator[Match]:
    with closing(ChainReader(chain, first)) as reader:
        known = reader.catalogue_at(first)
        ends: list[int] = []
        while (found := reader.read(_PIECE_BYTES, last)) is not None:
            if isinstance(found, LargeTransaction):
                with chain.open(found.seqno) as segment:
                    known = catalogue_with(known, segment, ())
                chooser = Chooser(selection, known.definitions)
                made = _of_large(found, chooser, known)
                if _head_is_asked_for(selection, made.body) and takes_large(made):
                    yield made
                return
            ends.append(found.last_seqno)
            for frames in _sifted(found, Chooser(_NOTHING, known.definitions), known):
                known = frames.catalogue
        # An id is made of the whole definition, so what is defined later in the segment takes nothing from a frame.
        chooser = Chooser(selection, known.definitions)
        for place in range(len(ends) - 1, -1, -1):
            reader.seek(ends[place - 1] + 1 if place else first)
            piece = reader.read(_PIECE_BYTES, ends[place])
            assert isinstance(piece, FrameBatch)
            made_here = [one for frames in _sifted(piece, chooser, known) for one in decoded(frames)]
            yield from reversed(made_here)


def _sifted(batch: FrameBatch, chooser: Chooser, catalogue: Catalogue) -> Iterator[Frames]:
    """What of a batch may be asked for, cut after each frame that defines something; the last one tells what is in
    force at the end."""
    data, selection, at_head = batch.data, chooser.selection, AUDITED.unpack_from
    first_csn, last_csn, origins = selection.first_csn, selection.last_csn, selection.origins
    is_defining = DEFINE_MARK in data and DEFINITION.search(data) is not None
    places: list[tuple[int, int]] = []
    begin, size = 0, len(data)
    mark = chooser.mark
    hit = _next(mark, data, 0)
    while begin < size:
        length, kind, origin, csn = at_head(data, begin)
        end = begin + FRAME_PREFIX_BYTES + length
        is_near = hit < end  # by chance also a mark that is a number of the head
        if kind == _HISTORY or (is_defining and may_define(data, begin + FRAME_HEAD_BYTES, end)):
            if places:
                yield Frames(data, places, chooser, catalogue)
            catalogue, places = with_frame(catalogue, data[begin:end]), []
            chooser = Chooser(selection, catalogue.definitions)
            mark, is_near = chooser.mark, True
        if is_near:
            if first_csn <= csn <= last_csn and (not origins or origin in origins):
                places.append((begin, end))
            hit = _next(mark, data, end)
        begin = end
    yield Frames(data, places, chooser, catalogue)


def _next(mark: Any, data: bytes, begin: int) -> int:
    """Where the next mark stands from `begin` on; after the data where none does."""
    if mark is None:
        return begin
    found = mark.search(data, begin)
    return len(data) if found is None else int(found.start())


def decoded(frames: Frames) -> Iterator[Match]:
    """Of frames that may be asked for, those that are. JournalDamagedError and its kin at the first that makes no
    sense, when all before it have been given."""
    data, places, chooser, catalogue = frames
    whole = len(places) > 1 and places[0][0] == 0 and sum(end - begin for begin, end in places) == len(data)
    try:
        flat = decode_batch(
            data if whole else b"".join([data[begin:end] for begin, end in places]), tuples=True, count=len(places)
        )
    except DamagedError:
        if len(places) == 1:
            raise
        for place in places:
            yield from decoded(Frames(data, [place], chooser, catalogue))
        return
    reads = chooser.selection.reads_changes
    for length, body in zip(flat[0::3], flat[2::3], strict=True):
        if reads and ((start := CHANGES_BEGIN.get(body[0])) is None or not chooser.takes_body(body, start)):
            continue
        yield Match(body, length + FRAME_PREFIX_BYTES, chooser, catalogue)


def match_of(frame: bytes, catalogue: Catalogue, selection: Selection) -> Iterator[Match]:
    """A frame that is no large one's, if it is asked for. `catalogue`: what is in force after it."""
    head = read_head(frame)
    if selection.is_in_time(head.csn) and (not selection.origins or head.origin in selection.origins):
        yield from decoded(Frames(frame, [(0, len(frame))], Chooser(selection, catalogue.definitions), catalogue))


# Large transactions.


def _of_large(found: LargeTransaction, chooser: Chooser, catalogue: Catalogue) -> Match:
    (_, _, body) = decode_batch(found.commit_frame, tuples=True, count=1)
    return Match(body, len(found.commit_frame), chooser, catalogue, found)


def _head_is_asked_for(selection: Selection, body: Sequence[Any]) -> bool:
    return selection.is_in_time(body[6]) and (not selection.origins or body[4] in selection.origins)


def takes_large(match: Match) -> bool:
    """Whether a large transaction, whose head is asked for, has what is asked for among its changes: read as far as to
    the first such change."""
    selection = match.chooser.selection
    if not selection.reads_changes:
        return True
    lacks_comment, lacks_change = selection.comment is not None, selection.chooses_changes
    for flat, chooser in large_changes(match):
        lacks_comment = lacks_comment and not chooser.has_comment(flat)
        lacks_change = lacks_change and next(chooser.chosen(flat), None) is None
        if not lacks_comment and not lacks_change:
            return True
    return False


def large_changes(match: Match) -> Iterator[tuple[Sequence[Any], Chooser]]:
    """The changes of a large transaction, flat, a part's at a time, and the chooser for what is in force after them.
    JournalDamagedError and its kin."""
    assert match.large is not None
    for _, flat, known in flat_parts(match.large.parts(), match.large.path, match.seqno, match.chooser.definitions):
        chooser = match.chooser
        if known is not chooser.definitions:
            chooser = Chooser(match.chooser.selection, known)
        yield flat, chooser


def flat_parts(
    frames: Iterable[bytes], where: str, seqno: int, definitions: Mapping[int, TableDefinition]
) -> Iterator[tuple[int, list[Any], Mapping[int, TableDefinition]]]:
    """Of each part of a large transaction the bytes of its frame, the changes that end in it (flat), and the
    definitions after it. `frames`: of all its parts, from the first on, which stand in `where`; `definitions`: those
    before it. JournalDamagedError and its kin."""
    stream, pending, known = unpacker(tuples=True), list[Any](), definitions
    for frame in frames:
        _, number, data = read_part(frame)
        try:
            stream.feed(data)
            pending.extend(stream)
        except UNPACK_ERRORS as error:
            text = f"part {number} of transaction {seqno} does not decode: {error}"
            raise JournalDamagedError(text, where=where, seqno=seqno) from error
        whole = len(pending) & ~3
        flat, pending = pending[:whole], pending[whole:]
        if Op.DEFINE in flat[0::4]:
            known = {**known, **dict(_defined(flat))}
        yield len(frame), flat, known


def _defined(flat: list[Any]) -> Iterator[tuple[int, TableDefinition]]:
    for at in range(0, len(flat), 4):
        if flat[at] == Op.DEFINE:
            change = decode_change(*flat[at : at + 4])
            assert isinstance(change, DefinitionChange)
            yield change.definition.table_id, change.definition


# The changes of a transaction.


def chosen_changes(match: Match) -> Iterator[tuple[Any, ...]]:
    """The changes of a transaction that are asked for, each as op, id, argument, values, in order."""
    if match.large is None:
        start = CHANGES_BEGIN.get(match.body[0], len(match.body))
        for at in match.chooser.chosen(match.body, start):
            yield tuple(match.body[at : at + 4])
        return
    for flat, chooser in large_changes(match):
        for at in chooser.chosen(flat):
            yield tuple(flat[at : at + 4])


def chosen_backwards(match: Match) -> Iterator[tuple[Any, ...]]:
    """The same from the last to the first. Of a large transaction the definitions must be those after it."""
    if match.large is None:
        yield from reversed(list(chosen_changes(match)))
        return
    for flat in changes_backwards(match.large):
        for at in reversed(list(match.chooser.chosen(flat))):
            yield tuple(flat[at : at + 4])
