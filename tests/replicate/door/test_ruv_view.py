"""Where a consumer's stream begins, looked up in journals of many segments and several origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.door.recovery.opening import make_chain
from replicate.door.ruv_view import start_for, vectors_of
from replicate.door.snapshot import door_of
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch
from replicate.journal.walk import walk
from replicate.model.ruv import lacks
from replicate.model.vector import Chains
from tests.harness.suppliers import Suppliers

SETTINGS = "[journal]\npool_bytes = 1048576\nsegment_bytes = 1048576\n"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    sites = Suppliers.create(tmp_path, settings=SETTINGS)
    for _ in range(4):
        for name in sites.names:
            sites.write(name, 400, size=1000)
        sites.level()
    return sites


@pytest.mark.slow
def test_every_place_of_either_journal_is_found_by_its_vector(two: Suppliers) -> None:
    """Against brute force: the first frame that is lacking, whatever segment it stands in."""
    chain = make_chain(two.by["a"])
    assert len(chain.first_seqnos()) > 2
    with door_of(two.by["a"]) as door:
        viewed = vectors_of(door)
    last = viewed.end.last_seqno
    frames = []
    reader = ChainReader(chain, viewed.oldest_seqno)
    while (found := reader.read(1 << 20, last)) is not None:
        assert isinstance(found, FrameBatch)
        frames += [head for _, head in walk(found.data)]
    reader.close()
    before_b: Chains = dict(viewed.supplied.begin)
    for place in range(0, len(frames), 97):
        known = dict(before_b)
        for head in frames[:place]:
            known[head.origin] = (head.origin_seqno, head.chain)
        assert start_for(chain, known, last) == frames[place].seqno
        for origin in list(known):
            less = {**known, origin: (max(0, known[origin][0] - 5), 0)}
            wanted = next((h.seqno for h in frames if lacks(less, h.origin, h.origin_seqno)), last + 1)
            assert start_for(chain, less, last) == wanted
    assert start_for(chain, viewed.supplied.end, last) == last + 1
    assert start_for(chain, {}, last) == viewed.oldest_seqno


@pytest.mark.slow
def test_the_vectors_of_the_end_and_of_the_beginning(two: Suppliers) -> None:
    with door_of(two.by["b"]) as door:
        viewed = vectors_of(door)
    assert dict(viewed.supplied.end) == dict(two.vector("b"))
    assert viewed.oldest_seqno == make_chain(two.by["b"]).oldest_seqno()
    assert all(viewed.supplied.end[origin][0] >= last for origin, (last, _) in viewed.supplied.begin.items())
    assert viewed.supplied.begin, "its journal begins with what the seed brought"
