"""What a supplier's journal and region say of the others, and where in it begins what one lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.door.snapshot import door_of
from replicate.errors import DivergedError, JournalMissingError, NotFoundError
from replicate.model.ruv import Supplied, covers
from replicate.transfer.packet.epochs_file import read_epochs
from replicate.transfer.packet.supplier_rows import UNPROVEN
from replicate.transfer.packet.suppliers import SuppliersView, look_at_suppliers
from tests.harness.suppliers import Suppliers, shared


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 3)


def view(made: Suppliers, name: str) -> SuppliersView:
    instance = made.by[name]
    with door_of(instance) as door:
        return look_at_suppliers(instance, door, read_epochs(instance.consumers_directory))


@pytest.mark.slow
def test_what_others_have_told_is_known_without_a_word_of_them(three: Suppliers) -> None:
    a, b, c = (three.by[name].content.origin.key for name in three.names)
    three.write("a", 2, table="ta")
    three.carry("a", "b")
    three.write("b", 1, table="ta")  # it tells that it has them
    three.carry("b", "c")
    found = view(three, "c")
    assert set(found.met) == {"a", "b", "c"}
    row = found.row("b")
    assert row is not None
    assert row.heard[a] == found.supplied.end[a], "by way of others, and proven by our own"
    assert row.heard[b] == found.supplied.end[b]
    assert found.reached(row.heard) == three.last_seqno("c"), "nothing is lacked"
    of_a = found.row("a")
    assert of_a is not None
    assert of_a.heard.get(b, (0, UNPROVEN))[0] < found.supplied.end[b][0]
    base = found.base(["a", "b"])
    assert not covers(base.chains, found.supplied.end)
    assert base.last_seqno < three.last_seqno("c")
    assert c in found.supplied.end


@pytest.mark.slow
def test_the_place_is_that_of_the_first_that_is_lacked(three: Suppliers) -> None:
    before = view(three, "a")
    three.write("a", 3, table="ta")
    found = view(three, "a")
    position = found.position(before.supplied.end)
    assert position.last_seqno == three.last_seqno("a") - 3
    assert found.reached({}) is None or found.reached({}) == 0


@pytest.mark.slow
def test_one_that_was_never_met_has_no_row(three: Suppliers) -> None:
    found = view(three, "a")
    assert found.row("z") is None
    assert found.incarnation("z") == 0
    with pytest.raises(NotFoundError, match="nothing is known of what z has"):
        found.base(["b", "z"])


@pytest.mark.slow
def test_what_is_held_no_more_is_named_and_another_may_have_it(three: Suppliers) -> None:
    found = view(three, "a")
    row = found.row("b")
    assert row is not None
    gone = replace(found, supplied=Supplied(found.supplied.end, {o: (n + 1, 1) for o, (n, _) in row.known.items()}))
    assert gone.reached({}) is None
    three.write("a", 1, table="ta")
    end = view(three, "a").supplied.end
    with pytest.raises(JournalMissingError, match="another supplier may still have them") as caught:
        replace(gone, supplied=Supplied(end, end)).base(["b"])
    assert "Have that one export to b" in caught.value.do


@pytest.mark.slow
def test_a_fork_is_refused_by_name(three: Suppliers) -> None:
    found = view(three, "a")
    other = {origin: (number, chain ^ 1) for origin, (number, chain) in found.supplied.end.items()}
    with pytest.raises(DivergedError, match="is another transaction here"):
        found.decide(other)
