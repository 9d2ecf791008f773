"""The Receiver Server's part of lost files: offered one by one, from where the source has them, and then marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from receiver_server import lost_files as module
from receiver_server.lost_files import LostSending
from replicate.lost.sent_mark import sent_to
from replicate.lost.travel import Traveller
from replicate.wire.message import CHUNK_BYTES, LostOffer
from tests.harness.servers import ListLog

BYTES = 2 * CHUNK_BYTES + 100


class Link:
    """Acknowledges by `says` what was sent, where a file is and how much of it has come."""

    def __init__(self, says: Callable[[int], int | None]) -> None:
        self.can_offer_lost = True
        self.offers: list[LostOffer] = []
        self.sizes: list[int] = []
        self.sending: LostSending | None = None
        self._says = says
        self._at = 0

    def offer_lost(self, offer: LostOffer) -> None:
        self.offers.append(offer)
        self._tell(0)

    def send_lost(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self._tell(self._at + len(data))

    def _tell(self, at: int) -> None:
        found = self._says(at)
        if found is not None:
            self._at = found
            assert self.sending is not None
            self.sending.acknowledged(found)


def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Link, count: int = 1) -> tuple[list[Path], ListLog]:
    """Run it over so many files, for a second at most."""
    paths = [tmp_path / f"{number}.jsonl" for number in range(count)]
    for path in paths:
        path.write_bytes(b"x" * BYTES)
    monkeypatch.setattr(module, "to_send", lambda _: [Traveller(path, 9, BYTES, 4, 7) for path in paths])
    log = ListLog()
    source = cast(Any, SimpleNamespace(log=log, instance=None))
    connection = cast(Any, SimpleNamespace(link=link, drive=SimpleNamespace(poke=lambda: None), peer_name="west"))
    link.sending = LostSending(source, connection)

    async def go() -> None:
        assert link.sending is not None
        with trio.move_on_after(1.0):
            await link.sending.run()

    trio.run(go)
    return paths, log


def test_each_is_sent_in_chunks_and_marked_when_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(lambda at: at)
    paths, log = sent(tmp_path, monkeypatch, link, count=2)
    assert link.offers == [LostOffer(9, BYTES, 4, 7)] * 2
    assert link.sizes == [CHUNK_BYTES, CHUNK_BYTES, 100] * 2
    assert [sent_to(path) for path in paths] == ["west", "west"]
    assert len(log.events("lost file sent")) == 2


def test_it_goes_on_from_where_the_source_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(lambda at: at or BYTES - 7)
    assert sent_to(sent(tmp_path, monkeypatch, link)[0][0]) == "west"
    assert link.sizes == [7]


def test_what_is_not_acknowledged_is_not_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(lambda at: at if at < BYTES else None)
    assert sent_to(sent(tmp_path, monkeypatch, link)[0][0]) == ""
    assert sum(link.sizes) == BYTES


def test_a_source_that_takes_none_is_offered_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(lambda at: at)
    link.can_offer_lost = False
    sent(tmp_path, monkeypatch, link)
    assert link.offers == []


def test_a_file_that_has_gone_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(lambda at: at)
    real = link.offer_lost

    def gone(offer: LostOffer) -> None:
        (tmp_path / "0.jsonl").unlink()
        real(offer)

    monkeypatch.setattr(link, "offer_lost", gone)
    _, log = sent(tmp_path, monkeypatch, link)
    assert len(log.events("lost file not sent")) == 1
