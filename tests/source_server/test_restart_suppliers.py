"""A supplier that asks for its stream, and lacks what it wrote itself: it was turned back, or has just written."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from replicate.errors import ReplicateError
from tests.harness.suppliers import Suppliers


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path)
    made.write("b", 2)
    made.level()
    return made


def test_what_it_wrote_before_its_hello_it_has_lost(two: Suppliers) -> None:
    """Also where others have written since."""
    origin, known = two.by["b"].content.origin.key, two.vector("b")
    two.write("b", 3)
    two.level()
    last = two.vector("a")[origin][0]
    two.write("a", 2)
    with pytest.raises(ReplicateError, match="b was turned back: it has less of its own than a has of it") as refused:
        two.agreed("a", "b", known=known, wall_ns=time.time_ns())
    assert refused.value.facts["peer_facts"] == {"origin": origin, "held_from": last}


def test_what_it_wrote_after_its_hello_is_sent_to_it(two: Suppliers) -> None:
    known, hello_wall_ns = two.vector("b"), time.time_ns()
    two.write("b", 3)
    two.level()
    assert two.agreed("a", "b", known=known, wall_ns=hello_wall_ns).unseen is not None


def test_one_that_has_all_of_its_own_is_sent_what_others_wrote(two: Suppliers) -> None:
    known = two.vector("b")
    two.write("a", 2)
    assert two.agreed("a", "b", known=known, wall_ns=time.time_ns()).from_seqno == two.last_seqno("a") - 1
