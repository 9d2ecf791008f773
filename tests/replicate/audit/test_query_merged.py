"""Times in the journal of a supplier, where what others wrote stands after what was written here meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from replicate.audit.query import Query, is_in_order_of_time, known_at_end
from replicate.audit.sources import find_in_directory, find_in_instance
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from tests.harness.sites import Sites
from tests.harness.suppliers import Suppliers


@pytest.fixture
def merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """What b wrote before a did came to a later: a segment of a begins with it."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path)
    made.write("b", 3)
    made.write("a", 3)
    made.write("a", size=2_000_000)  # in a segment of its own
    made.carry("b", "a")
    return made.by["a"]


def csns(instance: Instance) -> dict[int, int]:
    return {one.seqno: one.body[6] for one in find_in_instance(instance, Query())}


@pytest.mark.slow
def test_a_time_is_looked_for_in_every_segment_that_may_hold_it(merged: Instance, tmp_path: Path) -> None:
    known = csns(merged)
    assert list(known.values()) != sorted(known.values())
    copy = tmp_path / "copy"
    shutil.copytree(merged.journal_directory, copy)
    for csn in known.values():
        for query in (Query(first_csn=csn), Query(last_csn=csn), Query(first_csn=csn, last_csn=csn)):
            wanted = [seqno for seqno, found in known.items() if query.first_csn <= found <= query.last_csn]
            assert [one.seqno for one in find_in_instance(merged, query)] == wanted
            assert [one.seqno for one in find_in_directory(copy, query)] == wanted


def is_in_order(instance: Instance) -> bool:
    chain = Chain(instance.journal_directory)
    return is_in_order_of_time(known_at_end(chain), chain.scan_last()[1].chains)


def test_a_journal_of_suppliers_is_in_no_order(merged: Instance) -> None:
    assert not is_in_order(merged)


def test_one_of_a_pair_that_changed_roles_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    sites = Sites.level(tmp_path)
    for _ in range(2):
        sites.write(2)
        sites.switch()
        sites.write(2)
        sites.catch_up()
        assert is_in_order(sites.primary)
        assert is_in_order(sites.secondary)
    found = find_in_instance(sites.primary, Query())
    known = [one.body[6] for one in found]
    assert known == sorted(known)
