"""The conversation with a filter: transactions are given to it one after the other, and come back in the same order.

    to the filter                                              from the filter
      {"hello":"dualsite filter","version":1,"side":"receiver"}  the same line, or another one with "version":1
      {"begin":17,"origin":…,"origin_seqno":…,"time":…}          {"begin":17}
      {"op":…}                                                   {"op":…}         none, as many, or more
      {"end":17,"count":1}                                       {"end":17,"count":1}

More transactions are given before the first has come back; what of a large one has come is told on before its end.

Guarantees: of each transaction that is given one comes out, with its number, in the order in which they were given, or
an error names the transaction and what the filter said; nothing is passed over. What comes back as it went stays the
frame that it was, with its chain hash.
Leaves to others: the filter's process and the clock (filter_process.py), what the events mean (events.py). Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgpack

from replicate.errors import DamagedError, FilterError, InternalError
from replicate.filters.encoding import DO, Form, read_line, refuse, shown
from replicate.filters.events import EventWriter, Tables, read_change
from replicate.filters.restating import Restating, StreamItem, StreamLarge, StreamParts
from replicate.journal.frame import FIXED_ELEMENTS, FRAME_HEAD_BYTES, FRAME_PREFIX_BYTES
from replicate.journal.record import (
    CHANGES_BEGIN,
    UNPACK_ERRORS,
    FrameBatch,
    Head,
    decode_batch,
    large_commit_of,
    read_part,
    unpacker,
)
from replicate.limits import BATCH_BYTES_MAX, FILTER_EVENT_BYTES_MAX, KIB, MIB
from replicate.model.transaction import Op, TableDefinition

VERSION: Final = 1
"""Of what is said to a filter."""
WAITING_BYTES_MAX: Final = 1 * MIB
"""So much is with the filter at once, and one batch more."""
_PIECE_BYTES: Final = 256 * KIB
_ROWS: Final = frozenset((int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)))


class _ComingOut:
    """What comes out, whole transactions gathered into batches."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._bytes = 0
        self._first_seqno = 0
        self._out: list[StreamItem] = []

    def frame(self, seqno: int, frame: bytes) -> None:
        """A whole transaction, the next one."""
        if self._bytes + len(frame) > BATCH_BYTES_MAX:
            self._close_batch()
        if not self._frames:
            self._first_seqno = seqno
        self._frames.append(frame)
        self._bytes += len(frame)

    def other(self, item: StreamItem) -> None:
        """Something of a large transaction."""
        self._close_batch()
        self._out.append(item)

    def taken(self) -> list[StreamItem]:
        """All of it, once."""
        self._close_batch()
        out, self._out = self._out, []
        return out

    def _close_batch(self) -> None:
        if self._frames:
            first, count = self._first_seqno, len(self._frames)
            self._out.append(FrameBatch(first, first + count - 1, count, b"".join(self._frames)))
            self._frames, self._bytes = [], 0


class _Unsent:
    """What the filter is yet to be told."""

    def __init__(self) -> None:
        self._texts: deque[bytes] = deque()
        self.bytes = 0

    def add(self, text: bytes) -> None:
        self._texts.append(text)
        self.bytes += len(text)

    def next(self) -> bytes:
        """Some of it; again the same until `sent`."""
        if len(self._texts) > 1:
            pieces: list[bytes] = []
            size = 0
            while self._texts and size < _PIECE_BYTES:
                pieces.append(self._texts.popleft())
                size += len(pieces[-1])
            self._texts.appendleft(b"".join(pieces))
        return self._texts[0] if self._texts else b""

    def sent(self) -> None:
        """What `next` gave is written."""
        self.bytes -= len(self._texts.popleft())


class _Given:
    """A transaction that is with the filter."""

    __slots__ = ("changes", "count", "frame", "head", "is_told", "partitions", "seqno", "size", "table_ids", "text")

    def __init__(
        self,
        seqno: int,
        frame: bytes = b"",
        head: Sequence[Any] | None = None,
        text: bytes = b"",
        size: int = 0,
        changes: int = 0,
        table_ids: Sequence[int] = (),
        is_told: bool = True,
    ) -> None:
        self.seqno = seqno
        self.frame = frame
        """As it came; of one that fits a frame."""
        self.head = head
        """The numbers of its frame, as they are decoded; None: the filter is told nothing of it."""
        self.text = text
        """All that the filter was told; of one that it may echo."""
        self.size = size
        self.changes = changes
        """Where in `frame` the changes begin; 0: it is not compared with what comes back."""
        self.table_ids = table_ids
        self.is_told = is_told
        """All of it was given."""
        self.count = 0
        self.partitions: tuple[int, ...] = ()


class FilterTalk:
    """With one run of a filter. Any error is its end: the filter is ended then, and a new one begins with the first
    transaction that has not come out."""

    def __init__(
        self,
        name: str,
        form: Form,
        source: Mapping[int, TableDefinition],
        here: Mapping[int, TableDefinition],
        *,
        side: str,
        token: Callable[[], int],
        timeout_s: float,
        now: float,
    ) -> None:
        """`name`: of the filter. `source`: the definitions, by id, of what is given; `here`: of what comes back, those
        of the receiving side. `token` makes numbers that nobody else has. `now`: monotonic seconds, as of each call."""
        self.name = name
        self.reason = f"filter {name}"
        self.given = self.passed = 0
        """Transactions that the filter was given, and those of them that came back as they went."""
        self._form = form
        self._in = Tables(source)
        self._out = Tables(here)
        self._writer = EventWriter(self._in, form)
        self._token = token
        self._timeout_s = timeout_s
        self._moved = now
        self._queue: deque[_Given] = deque()
        self._large: _Given | None = None
        self._large_reader: Any = None
        self._large_rest: list[Any] = []
        self._unsent = _Unsent()
        self._waiting_bytes = 0
        self._heard = bytearray()
        self._searched = 0
        """So far `_heard` has no end of a line."""
        self._is_greeted = False
        self._made: Restating | None = None
        self._coming_out = _ComingOut()
        hello = self._writer.event({"hello": "dualsite filter", "version": VERSION, "side": side})
        self._say(hello, now)

    # To the filter.

    @property
    def is_full(self) -> bool:
        """Give it nothing more before something has come back."""
        return self._waiting_bytes > WAITING_BYTES_MAX or self._unsent.bytes > WAITING_BYTES_MAX

    @property
    def waiting_bytes(self) -> int:
        """Of frames, about, that were given and have not come out."""
        return self._waiting_bytes

    @property
    def is_idle(self) -> bool:
        """Nothing is with the filter."""
        return not self._queue and self._is_greeted

    def bytes_to_send(self) -> bytes:
        """What to write next; again the same until `sent`."""
        return self._unsent.next()

    def sent(self, now: float) -> None:
        """What `bytes_to_send` gave is written."""
        self._unsent.sent()
        self._moved = now

    def give(self, item: StreamItem, now: float) -> list[StreamItem]:
        """What comes next in the stream: whole transactions, or parts of a large one from its first on. What can come
        out already. Raises JournalDamagedError and its kin."""
        if isinstance(item, FrameBatch):
            self._give_batch(item, now)
        elif isinstance(item, StreamParts):
            self._give_parts(item.seqno, item.frames, now)
        else:
            self._give_large(item.seqno, item.frame, now)
        return self._come_out()

    def _give_batch(self, batch: FrameBatch, now: float) -> None:
        data, queue, writer = batch.data, self._queue, self._writer
        flat = decode_batch(data, count=batch.count)
        if not queue:
            self._moved = now
        texts = []
        begin = waiting = 0
        for at in range(2, len(flat), 3):
            body = flat[at]
            end = begin + flat[at - 2] + FRAME_PREFIX_BYTES
            kind = body[0]
            start = CHANGES_BEGIN.get(kind)
            frame = data[begin:end]
            begin = end
            if start is None:  # a NULL or HISTORY record is no filter's business
                waiting += len(frame)
                queue.append(_Given(body[1], frame, size=len(frame)))
                continue
            changes = body[start:]
            text = writer.transaction(body, changes)
            texts.append(text)
            waiting += len(text)
            echo = text if _ROWS.issuperset(changes[0::4]) else b""
            compared = FRAME_HEAD_BYTES if start == FIXED_ELEMENTS else 0
            head = tuple(body[:FIXED_ELEMENTS])  # not the body: rows that are kept keep the collector busy
            queue.append(_Given(body[1], frame, head, echo, len(text), compared, tuple(changes[1::4])))
        self.given += len(texts)
        self._waiting_bytes += waiting
        self._say(b"".join(texts), now)

    def _give_parts(self, seqno: int, frames: bytes, now: float) -> None:
        offset = 0
        while offset < len(frames):
            head, number, piece = read_part(frames, offset)
            offset += head.frame_bytes
            if number == 0:
                self._open_large(seqno, head.origin, now)
            large = self._large
            if large is None or large.seqno != seqno:
                raise InternalError(
                    f"part {number} of transaction {seqno}, whose first part was not given to the filter"
                )
            try:
                self._large_reader.feed(piece)
                self._large_rest.extend(self._large_reader)
            except UNPACK_ERRORS as error:
                raise DamagedError(f"part {number} of transaction {seqno} does not decode: {error}") from error
            whole = len(self._large_rest) & ~3
            changes, self._large_rest = self._large_rest[:whole], self._large_rest[whole:]
            events = self._writer.write(changes)
            large.count += len(changes) // 4
            ids = self._in.partitions(changes[1::4])
            large.partitions = tuple(sorted({*large.partitions, *ids}))
            self._say(events, now)

    def _open_large(self, seqno: int, origin: int, now: float) -> None:
        if self._large is not None:
            raise InternalError(f"transaction {seqno} begins before {self._large.seqno} has ended")
        large = self._large = _Given(seqno, head=(0, seqno, 0, 0, origin, 0, 0), is_told=False)
        self._large_reader, self._large_rest = unpacker(), []
        if not self._queue:
            self._moved = now
        self.given += 1
        self._queue.append(large)
        self._say(self._writer.begin(seqno, origin), now)

    def _give_large(self, seqno: int, frame: bytes, now: float) -> None:
        large = self._large
        body = decode_batch(frame, count=1)[2]
        if large is None or large.seqno != seqno or self._large_rest or not large_commit_of(body):
            raise DamagedError(f"the commit of large transaction {seqno} does not fit its parts")
        large.head = body
        large.is_told = True
        self._large = None
        self._say(self._writer.end(seqno, large.count), now)

    def _say(self, text: bytes, now: float) -> None:
        if not text:
            return
        if not self._unsent.bytes:
            self._moved = now
        self._unsent.add(text)

    # From the filter.

    def receive(self, data: bytes, now: float) -> list[StreamItem]:
        """What the filter has said; what comes out by that. FilterError: nothing more does."""
        self._moved = now
        heard = self._heard
        heard += data
        try:
            at = (self._lines if self._form is Form.JSON else self._maps)(heard)
            del heard[:at]
            if len(heard) > FILTER_EVENT_BYTES_MAX:
                raise refuse(f"a line, or a value, is longer than {FILTER_EVENT_BYTES_MAX >> 20} MiB")
            if heard and self._is_greeted and not self._queue:
                raise refuse(f"it spoke before it was given a transaction: {shown(bytes(heard[:100]))}")
        except FilterError as error:
            raise self._named(error) from None
        return self._come_out()

    def ended(self, how: str) -> FilterError:
        """The filter has ended, `how`, though nobody asked it to."""
        return self._named(FilterError(f"it ended: {how}", do=DO))

    @property
    def deadline(self) -> float | None:
        """When `tick` is due; None: nothing is awaited from the filter."""
        awaited = self._unsent.bytes or not self._is_greeted or (self._queue and self._queue[0].is_told)
        return self._moved + self._timeout_s if awaited else None

    def resumed(self, now: float) -> None:
        """What the filter says is read again: its time begins again."""
        self._moved = now

    def tick(self, now: float) -> None:
        """FilterError when the filter has done nothing for too long."""
        deadline = self.deadline
        if deadline is not None and now >= deadline:
            raise self._named(FilterError(f"it has read and said nothing for {self._timeout_s:g} s", do=DO))

    def _named(self, error: FilterError) -> FilterError:
        seqno = self._queue[0].seqno if self._queue else 0
        at = f" at transaction {seqno}" if seqno else ""
        return FilterError(f"the filter {self.name} failed{at}: {error.what}", do=error.do, seqno=seqno)

    def _lines(self, heard: bytearray) -> int:
        """Take what stands there whole; up to where."""
        at = 0
        while True:
            at = self._echoes(heard, at)
            if not self._is_wanted(heard, at):
                return at
            end = heard.find(b"\n", max(at, self._searched))
            if end < 0:
                self._searched = len(heard) - at
                return at
            self._searched = 0
            line = bytes(heard[at : end + 1])
            at = end + 1
            if len(line) > FILTER_EVENT_BYTES_MAX:
                raise refuse(f"a line is longer than {FILTER_EVENT_BYTES_MAX >> 20} MiB")
            if self._made is None and self._queue and self._queue[0].text.startswith(line):
                self._begun()
            elif line.strip():
                self._hear(read_line(line))

    def _is_wanted(self, heard: bytearray, at: int) -> bool:
        """Whether to look at what stands there now: not while it may yet be the echo of all that was told."""
        if self._made is not None or not self._is_greeted:
            return True
        if not self._queue:
            return False
        text = self._queue[0].text
        left = len(heard) - at
        return not (left < len(text) and text.startswith(bytes(heard[at:])))

    def _maps(self, heard: bytearray) -> int:
        at = self._echoes(heard, 0)
        if at == len(heard) or not self._is_wanted(heard, at):
            return at
        reader = msgpack.Unpacker(max_buffer_size=FILTER_EVENT_BYTES_MAX + 2 * MIB, strict_map_key=False)
        try:
            reader.feed(memoryview(heard)[at:])
            whole = 0
            for event in reader:
                if self._is_greeted and not self._queue:
                    break
                whole = reader.tell()
                self._hear(event)
            return at + whole
        except UNPACK_ERRORS as error:
            raise refuse(f"what it said is no msgpack: {error}") from None

    def _echoes(self, heard: bytearray, at: int) -> int:
        """Take the transactions that came back as they went."""
        queue = self._queue
        current = self._out.current
        while queue and self._made is None and self._is_greeted:
            given = queue[0]
            if given.head is None:
                self._pass_untold()
                continue
            text = given.text
            if not text or not heard.startswith(text, at) or not current.issuperset(given.table_ids):
                break
            at += len(text)
            self.passed += 1
            self._pass_on(given)
        return at

    def _pass_untold(self) -> None:
        """Let out what the filter is told nothing of, as far as nothing that it was told is before it."""
        while self._queue and self._queue[0].head is None:
            self._pass_on(self._queue[0])

    def _pass_on(self, given: _Given) -> None:
        self._queue.popleft()
        self._waiting_bytes -= given.size
        self._coming_out.frame(given.seqno, given.frame)

    def _hear(self, event: Any) -> None:
        if not self._is_greeted:
            if type(event) is not dict or event.get("version") != VERSION:
                raise refuse(f'its first word should have "version":{VERSION}, is {shown(event)}')
            self._is_greeted = True
            self._pass_untold()
            return
        if not self._queue:
            raise refuse(f"it spoke before it was given a transaction: {shown(event)}")
        given = self._queue[0]
        if self._made is None:
            if type(event) is not dict or "begin" not in event:
                raise refuse(f"the beginning of transaction {given.seqno} should stand here: {shown(event)}")
            if type(event["begin"]) is not int or event["begin"] != given.seqno:
                raise refuse(f"transaction {shown(event['begin'])} begins; {given.seqno} is next")
            self._begun()
        elif type(event) is dict and "end" in event:
            self._ended(given, self._made, event)
        elif type(event) is dict and "begin" in event:
            raise refuse(f"transaction {shown(event['begin'])} begins before the end of {given.seqno}")
        else:
            self._change(self._made, event)

    def _begun(self) -> None:
        given = self._queue[0]
        assert given.head is not None
        self._made = Restating(given.seqno, given.head[4], self._token())

    def _change(self, made: Restating, event: Any) -> None:
        made.told += 1
        change = read_change(event, self._out)
        if change:
            made.add(change)
            self._parts(made)

    def _parts(self, made: Restating) -> None:
        parts = made.parts()
        if parts is not None:
            self._coming_out.other(parts)

    def _ended(self, given: _Given, made: Restating, event: Mapping[str, Any]) -> None:
        if type(event["end"]) is not int or event["end"] != given.seqno:
            raise refuse(f"transaction {shown(event['end'])} ends; {given.seqno} has begun")
        if type(event.get("count")) is not int or event["count"] != made.told:
            raise refuse(f"it ends with a count of {shown(event.get('count'))}; {made.told} changes came")
        if not given.is_told:
            raise refuse("it ended the transaction before it was given all of it")
        self._made = None
        self._queue.popleft()
        self._waiting_bytes -= given.size
        self._finish(given, made)
        self._pass_untold()

    def _finish(self, given: _Given, made: Restating) -> None:
        if given.changes and not made.is_large and self._is_as_it_was(given, made):
            self.passed += 1
            self._coming_out.frame(given.seqno, given.frame)
            return
        made.close()
        self._parts(made)
        head = _head_of(given)
        partitions = given.partitions or self._in.partitions(given.table_ids)
        frame = made.finish(head, self.reason, partitions)
        if made.is_large:
            self._coming_out.other(StreamLarge(given.seqno, frame))
        else:
            self._coming_out.frame(given.seqno, frame)

    def _is_as_it_was(self, given: _Given, made: Restating) -> bool:
        return made.changes == given.frame[given.changes :]

    def _come_out(self) -> list[StreamItem]:
        if self._is_greeted:
            self._pass_untold()
        return self._coming_out.taken()


def _head_of(given: _Given) -> Head:
    assert given.head is not None
    kind, seqno, mark, chain, origin, origin_seqno, csn = given.head[:FIXED_ELEMENTS]
    return Head(0, 0, FIXED_ELEMENTS, kind, seqno, mark, chain, origin, origin_seqno, csn)
