"""Random histories through a filter that changes nothing: both sites are as if there were none."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.filters.conversation import FilterTalk
from replicate.filters.encoding import Form
from replicate.filters.restating import StreamItem, StreamLarge, StreamParts
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import FrameBatch, read_part
from replicate.pool.receive_pool import ReceivePool, RecordKind
from tests.harness.histories import History, perform
from tests.harness.pair import Pair, work_all
from update_process.applier import Applier

pytestmark = pytest.mark.slow

HISTORIES = 6
"""Of each way to say the same."""
CONFIGURATION = '[journal]\ndurability = "off"\npool_bytes = 1048576\n'


def other_words(told: bytes) -> bytes:
    """The same lines of JSON, written in another way: none of it is an echo."""
    return b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in told.splitlines())


WAYS: dict[str, tuple[Form, Callable[[bytes], bytes]]] = {
    "echoed": (Form.JSON, bytes),
    "other words": (Form.JSON, other_words),
    "msgpack": (Form.MSGPACK, bytes),
}


class Street:
    """The journal of a primary, through a filter, into the receive pool, and applied."""

    def __init__(self, pair: Pair, pool: ReceivePool, applier: Applier, form: Form, dice: Random) -> None:
        self._pool = pool
        self._applier = applier
        self._dice = dice
        with door_of(pair.primary) as door:
            door.sync_to_end()
        self._last = pair.last_seqno()
        self._reader = ChainReader(make_chain(pair.primary), pool.last_received_seqno + 1)
        source = self._reader.catalogue_at(pool.last_received_seqno + 1)
        self.talk = FilterTalk(
            "mine", form, source.definitions, source.newest().definitions, side="receiver",
            token=lambda: dice.getrandbits(64), timeout_s=1.0, now=0.0,
        )  # fmt: skip

    def run(self, say: Callable[[bytes], bytes]) -> None:
        """All of it; `say` is the filter."""
        try:
            while (found := self._reader.read(self._dice.choice((1, 5000, 64 * 1024)), self._last)) is not None:
                for item in _items(found):
                    self._put(self.talk.give(item, 0.0))
                    if self._dice.random() < 0.7:
                        self._converse(say)
            self._converse(say)
        finally:
            self._reader.close()
        assert self.talk.is_idle
        work_all(self._applier)
        assert self._applier.applied_seqno == self._last

    def _converse(self, say: Callable[[bytes], bytes]) -> None:
        told = b""
        while data := self.talk.bytes_to_send():
            told += data
            self.talk.sent(0.0)
        said = say(told)
        size = self._dice.choice((100, 4096, 1 << 20)) if len(said) < 100_000 else 1 << 16
        for offset in range(0, len(said), size):
            self._put(self.talk.receive(said[offset : offset + size], 0.0))

    def _put(self, items: list[StreamItem]) -> None:
        for item in items:
            while not self._offer(item):
                work_all(self._applier)

    def _offer(self, item: StreamItem) -> bool:
        if isinstance(item, FrameBatch):
            return self._pool.offer(item.data, item.first_seqno, item.last_seqno, item.count, RecordKind.FRAMES)
        if isinstance(item, StreamParts):
            return self._pool.offer(item.frames, item.seqno, item.seqno, item.count, RecordKind.PARTS)
        return self._pool.offer(item.frame, item.seqno, item.seqno, 1, RecordKind.LARGE)


def _items(found: FrameBatch | LargeTransaction) -> list[StreamItem]:
    if isinstance(found, FrameBatch):
        return [found]
    parts = [StreamParts(found.seqno, found.token, read_part(part)[1], 1, part) for part in found.parts(0)]
    return [*parts, StreamLarge(found.seqno, found.commit_frame)]


@pytest.mark.parametrize("way", WAYS)
def test_a_filter_that_changes_nothing_is_none(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, say = WAYS[way]
    passed = given = 0
    for number in range(HISTORIES):
        text = f"filter-{way}-{number}"
        print(f"seed {text}")
        history = History.draw(text)
        directory = Path(tempfile.mkdtemp(prefix="replicate-filter-", dir="/dev/shm"))
        try:
            monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory / "shm"))
            pair = Pair.create(directory, history.scripts[0], settings=CONFIGURATION)
            for script in history.scripts[1:]:
                other = apsw.Connection(str(directory / "two.db"))
                other.execute(script)
                other.close()
                add_region(pair.primary, directory / "two.db", name="two")
            pair.seed()
            perform(pair, history)
            with pair.receive_pool(8 << 20) as pool, pair.applier(pool) as applier:
                street = Street(pair, pool, applier, form, Random(text))
                street.run(say)
            equal = compare(pair.primary, pair.secondary, timeout_s=60)
            assert equal.equal, equal
            passed, given = passed + street.talk.passed, given + street.talk.given
        finally:
            shutil.rmtree(directory)
    assert given > 3 * HISTORIES
    assert passed > given / 2, "what is small stays the frame that it was"
