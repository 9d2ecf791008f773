"""The reload cases of 389 Directory Server's description: a buffer was sent, its supplier has got news meanwhile, and
the next one is loaded.

There the changelog is sorted by time, so news of an origin X may be inserted before the end of the buffer, and four
cases say where to go on. Here news stands after all that was there, whatever its time is, so each of the four goes on
at the cursor. X is c; a sends to b, and gets what c has written while it does.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.door.recovery.opening import make_chain
from replicate.instance.instance import Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, Head
from replicate.journal.walk import walk
from replicate.model.ruv import covers
from replicate.roles.supplier import convert
from replicate.transfer.seed.direct import seed
from tests.harness.instances import with_settings
from tests.harness.pair import SMALL
from tests.harness.suppliers import Suppliers
from update_process.work_result import Done


class Stream:
    """From a to b, a buffer at a time. Its start is reckoned once."""

    def __init__(self, made: Suppliers) -> None:
        self._made = made
        self._agreed = made.agreed("a", "b")
        self.cursor = self._agreed.from_seqno

    def load(self, count: int) -> Done:
        """The next `count` transactions of a's journal go, and b applies what it lacks of them."""
        made, agreed = self._made, replace(self._agreed, from_seqno=self.cursor)
        with made.receive_pool("b", self.cursor) as pool, made.applier("b", pool) as applier:
            self.cursor += made.offer("a", pool, agreed, most=count)
            done = Done()
            while (one := applier.work(60)).transactions or one.skipped:
                done.transactions += one.transactions
                done.skipped += one.skipped
            return done

    def sent(self) -> list[Head]:
        """What stands before the cursor."""
        return [head for head in heads(self._made, "a") if head.seqno < self.cursor]

    def rest(self) -> list[Head]:
        """What stands after it."""
        return [head for head in heads(self._made, "a") if head.seqno >= self.cursor]


def heads(made: Suppliers, name: str) -> list[Head]:
    """Of its whole journal."""
    found: list[Head] = []
    chain = make_chain(made.by[name])
    with closing(ChainReader(chain, chain.oldest_seqno())) as reader:
        while (batch := reader.read(1 << 20, made.last_seqno(name))) is not None:
            assert isinstance(batch, FrameBatch)
            found += [head for _, head in walk(batch.data)]
    return found


def origin_of(made: Suppliers, name: str) -> int:
    made.by[name].reload()
    return made.by[name].content.origin.key


def with_third(made: Suppliers) -> Suppliers:
    """c joins, by a copy of b, and nobody was told of it."""
    b = made.by["b"]
    c = Instance.create(made.directory / "c", role="secondary", name="c", network=b.content.network)
    b.register_peer("c", "127.0.0.1", 7430)
    seed(b, with_settings(c, SMALL))
    c.reload()
    convert(c, "supplier", timeout_s=30)
    made.by["c"], made.names = c, ("a", "b", "c")
    return made


def says(made: Suppliers, name: str, count: int) -> None:
    """Transactions that anybody may write."""
    with closing(made.connect(name)) as connection:
        for number in range(count):
            connection.log_comment(f"{name} {number}")


def assert_has_all(made: Suppliers, stream: Stream) -> None:
    """The stream is at its end, and b has each transaction that a has, once."""
    assert not stream.rest()
    assert covers(made.vector("b"), made.vector("a"))
    assert made.rows("b") == made.rows("a")
    found = [(head.origin, head.origin_seqno) for head in heads(made, "b")]
    assert len(set(found)) == len(found)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """a, b, and c, of which a has heard."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = with_third(Suppliers.create(tmp_path))
    made.level()
    return made


@pytest.fixture
def unheard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """a, b, and c, of which neither a nor b has heard."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return with_third(Suppliers.create(tmp_path))


def test_case_1_nothing_new_of_x(made: Suppliers) -> None:
    """csnPrevMaxSup(X) = csnMaxSup(X): X does not bear on the start."""
    says(made, "c", 2)
    made.carry("c", "a")
    made.write("a", 2)
    stream = Stream(made)
    assert stream.load(3).transactions == 3
    made.write("a", 2)
    x = origin_of(made, "c")
    assert not [head for head in stream.rest() if head.origin == x]
    assert stream.load(9).transactions == 3
    assert_has_all(made, stream)


def test_case_2_the_last_known_number_of_x_is_not_reached(made: Suppliers) -> None:
    """csnPrevMaxSup(X) >= csnBuffer: what comes of X stands after what of X is still to go."""
    made.write("a", 2)
    says(made, "c", 3)
    made.carry("c", "a")
    stream, x = Stream(made), origin_of(made, "c")
    before = [head.origin_seqno for head in stream.rest() if head.origin == x]
    assert stream.load(3).transactions == 3
    says(made, "c", 2)
    made.carry("c", "a")
    rest = [head.origin_seqno for head in stream.rest() if head.origin == x]
    assert rest == [*before[1:], before[-1] + 1, before[-1] + 2]
    assert stream.load(9).transactions == 4
    assert_has_all(made, stream)


def test_case_3_1_the_first_of_x_came_and_the_consumer_has_nothing_of_it(unheard: Suppliers) -> None:
    """csnPrevMaxSup(X) = NULL: X is sent from its first, the record that begins it."""
    made = unheard
    says(made, "c", 2)
    made.write("a", 4)
    stream, x = Stream(made), origin_of(made, "c")
    assert stream.load(3).transactions == 3
    made.carry("c", "a")
    assert all(stream.sent()[-1].csn > head.csn for head in stream.rest() if head.origin == x), "sorted, it is missed"
    assert [head.origin_seqno for head in stream.rest() if head.origin == x] == [0, 1, 2]
    assert stream.load(9).transactions == 4
    assert_has_all(made, stream)


def test_case_3_1_the_first_of_x_came_and_the_consumer_has_some_of_it(unheard: Suppliers) -> None:
    """It goes on with the next one of X: what it has got from c itself is passed over."""
    made = unheard
    made.write("a", 4)
    stream = Stream(made)
    says(made, "c", 1)
    assert stream.load(3).transactions == 3
    made.carry("c", "b")
    says(made, "c", 2)
    made.carry("c", "a")
    done = stream.load(9)
    assert (done.transactions, done.skipped) == (3, 2)
    assert_has_all(made, stream)


def test_case_3_1_the_first_of_x_came_and_the_consumer_has_all_of_it(unheard: Suppliers) -> None:
    """X is ignored."""
    made = unheard
    made.write("a", 4)
    stream = Stream(made)
    says(made, "c", 2)
    assert stream.load(3).transactions == 3
    made.carry("c", "b")
    made.carry("c", "a")
    done = stream.load(9)
    assert (done.transactions, done.skipped) == (1, 3)
    assert_has_all(made, stream)


def test_case_3_2_x_has_moved_on_below_the_cursor(made: Suppliers) -> None:
    """csnPrevMaxSup(X) < csnBuffer: its next ones are older than what was sent, and stand after it."""
    says(made, "c", 2)
    made.carry("c", "a")
    says(made, "c", 2)
    made.write("a", 3)
    stream, x = Stream(made), origin_of(made, "c")
    assert stream.load(4).transactions == 4
    made.carry("c", "a")
    news = [head for head in stream.rest() if head.origin == x]
    assert len(news) == 2
    assert all(stream.sent()[-1].csn > head.csn for head in news), "sorted by time they stand before the cursor"
    assert stream.load(9).transactions == 3
    assert_has_all(made, stream)


def test_case_3_2_x_was_ignored_and_has_moved_on_past_the_consumer(made: Suppliers) -> None:
    """csnConsumer(X) > csnPrevMaxSup(X) at the start: b had more of X than a then."""
    says(made, "c", 2)
    made.carry("c", "b")
    made.write("a", 3)
    stream, x = Stream(made), origin_of(made, "c")
    assert not [head for head in stream.rest() if head.origin == x]
    assert stream.load(2).transactions == 2
    says(made, "c", 1)
    made.carry("c", "a")
    done = stream.load(9)
    assert (done.transactions, done.skipped) == (2, 2)
    assert_has_all(made, stream)


def test_all_that_is_new_stands_after_the_cursor_whatever_its_time_is(made: Suppliers) -> None:
    """Why the four are one. By times they would be four, and times do not rise in the journal."""
    says(made, "c", 3)
    made.write("a", 6)
    stream, x = Stream(made), origin_of(made, "c")
    stream.load(4)
    before = heads(made, "a")
    made.carry("c", "a")
    after = heads(made, "a")
    assert after[: len(before)] == before
    assert [head.origin for head in after[len(before) :]] == [x] * 3
    assert [head.seqno for head in after] == [*range(1, len(after) + 1)]
    assert sorted(after, key=lambda head: head.csn) != after
    assert stream.load(9).transactions == 5
    assert_has_all(made, stream)
