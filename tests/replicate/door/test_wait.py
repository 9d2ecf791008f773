"""Waiting for a transaction, also over what retires the pool meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.door.wait import OriginReached, wait_for_origin, wait_for_seqno
from replicate.errors import NotFoundError, NotPrimaryError, TryAgainError, UsageError
from replicate.instance.instance import Instance
from replicate.roles.rollback import rollback
from tests.harness.sites import Sites
from tests.harness.suppliers import Suppliers
from tests.replicate.roles.test_source_refusal import part


def test_the_last_one_is_told(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    last = sites.last_seqno()
    assert wait_for_seqno(sites.primary, last, timeout_s=0.0) == last
    assert wait_for_seqno(sites.primary, 0, timeout_s=0.0) == last
    with pytest.raises(TryAgainError, match=f"the last one is {last}"):
        wait_for_seqno(sites.primary, last + 1, timeout_s=0.0)
    with pytest.raises(UsageError):
        wait_for_seqno(sites.primary, -1, timeout_s=0.0)


def test_it_outlasts_a_rollback(tmp_path: Path) -> None:
    """It kept the retired pool, and never saw what came after."""
    sites = Sites.level(tmp_path)
    common = part(sites, 1)
    wanted = sites.last_seqno() + 1
    assert wanted > sites.last_seqno(sites.secondary)
    found: list[int] = []
    waiter = Instance.open(sites.secondary.path)
    thread = threading.Thread(target=lambda: found.append(wait_for_seqno(waiter, wanted, timeout_s=60)))
    thread.start()
    rollback(sites.secondary, common)
    sites.secondary = Instance.open(sites.secondary.path)
    sites.write(1)
    sites.catch_up()
    thread.join(60)
    assert found == [wanted]


def test_it_waits_for_the_end_of_a_rollback(tmp_path: Path) -> None:
    sites = Sites.level(tmp_path)
    marker = sites.secondary.path / ROLLBACK_MARKER
    marker.write_text("{}")
    with pytest.raises(TryAgainError, match="a rollback"):
        wait_for_seqno(sites.secondary, 1, timeout_s=0.1)
    timer = threading.Timer(0.3, marker.unlink)
    timer.start()
    assert wait_for_seqno(sites.secondary, 1, timeout_s=60) == sites.last_seqno()
    timer.join()


# Of another supplier.


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def own(two: Suppliers, name: str) -> tuple[int, int]:
    """The incarnation that it writes now, and the number of its last transaction."""
    two.by[name].reload()
    content = two.by[name].content
    return content.incarnation, two.vector(name)[content.origin.key][0]


def test_what_another_supplier_has_committed_is_waited_for(two: Suppliers) -> None:
    """Its own number says nothing of the other one's."""
    two.write("b", 5)
    two.write("a", 2)
    incarnation, last = own(two, "a")
    site = two.by["b"]
    assert two.last_seqno("b") > last
    with pytest.raises(TryAgainError, match=f"transaction {last} of a/{incarnation} .*; the last one is {last - 2}"):
        wait_for_origin(site, "a", last, timeout_s=0.0)
    two.carry("a", "b")
    assert len(two.rows("b")["ta"]) == 2
    for origin in ("a", f"a/{incarnation}"):
        assert wait_for_origin(site, origin, last, timeout_s=0.0) == OriginReached("a", incarnation, last)
    assert wait_for_origin(site, "a", 0, timeout_s=0.0).last == last
    assert wait_for_origin(site, "b", own(two, "b")[1], timeout_s=0.0).last == own(two, "b")[1]


def test_it_returns_when_the_transaction_comes(two: Suppliers) -> None:
    two.write("a")
    incarnation, last = own(two, "a")
    found: list[OriginReached] = []
    waiter = Instance.open(two.by["b"].path)
    thread = threading.Thread(
        target=lambda: found.append(wait_for_origin(waiter, "a", last, timeout_s=600)), daemon=True
    )
    thread.start()
    two.write("b", 3)
    two.carry("a", "b")
    thread.join(60)
    assert found == [OriginReached("a", incarnation, last)]


def test_an_incarnation_that_is_to_come_is_waited_for(two: Suppliers) -> None:
    """A number of the one before it is none of it."""
    incarnation, last = own(two, "a")
    with pytest.raises(TryAgainError, match=f"a/{incarnation + 1} .*; none of it is here"):
        wait_for_origin(two.by["b"], f"a/{incarnation + 1}", 1, timeout_s=0.0)
    assert wait_for_origin(two.by["b"], f"a/{incarnation}", 1, timeout_s=0.0).last == last


def test_one_that_has_begun_again_is_named(two: Suppliers) -> None:
    """a has had another incarnation as the primary that it was."""
    incarnation, last = own(two, "a")
    assert incarnation > 1
    with pytest.raises(TryAgainError) as caught:
        wait_for_origin(two.by["b"], "a/1", last + 100, timeout_s=0.0)
    assert f"a has begun incarnation {incarnation} since" in caught.value.do


NO_ORIGINS: Sequence[tuple[str, type[Exception], str]] = (
    ("nobody", NotFoundError, "no record has said here who 'nobody' is.*a, b"),
    ("nobody/1", NotFoundError, "no record has said here who 'nobody' is"),
    ("", NotFoundError, "no record has said here who '' is"),
    ("a/", UsageError, "'a/' is no origin"),
    ("a/one", UsageError, "'a/one' is no origin"),
    ("a/-1", UsageError, "'a/-1' is no origin"),
    ("a/²", UsageError, "'a/²' is no origin"),
)


def test_who_is_no_origin_is_refused_at_once(two: Suppliers) -> None:
    for origin, error, text in NO_ORIGINS:
        with pytest.raises(error, match=text):
            wait_for_origin(two.by["b"], origin, 1, timeout_s=60)


def test_a_number_that_is_none_and_who_is_no_supplier_are_refused(two: Suppliers, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="-1 is no number"):
        wait_for_origin(two.by["b"], "a", -1, timeout_s=60)
    other = Instance.create(tmp_path / "p", role="primary", name="p")
    with pytest.raises(NotPrimaryError, match="p is primary: only suppliers") as caught:
        wait_for_origin(other, "p", 1, timeout_s=60)
    assert f"-i {other.named} wait --seqno N" in caught.value.do


def test_by_command(two: Suppliers) -> None:
    two.write("a")
    incarnation, last = own(two, "a")
    two.carry("a", "b")
    words = ["-i", str(two.by["b"].path), "wait", "--origin", "a", "--seqno"]
    done = CliRunner().invoke(root, [*words, str(last)])
    assert (done.exit_code, done.output) == (0, f"a/{incarnation} up to {last}\n")
    done = CliRunner().invoke(root, ["--json", *words, str(last)])
    assert json.loads(done.output) == {"origin": "a", "incarnation": incarnation, "last": last}
    done = CliRunner().invoke(root, [*words, str(last + 1), "--timeout", "0"])
    assert isinstance(done.exception, TryAgainError)
    assert done.exception.exit_code == 75
