"""One connect for several sites: it opens the one that takes writes, over each change of the role."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replicate import connect
from replicate.dbapi import DatabaseError, OperationalError
from replicate.errors import ConfigurationError, NotPrimaryError, UsageError
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.superseded import meet
from tests.harness.pair import assert_equal
from tests.harness.sites import Sites, other

INSERT = "INSERT INTO account(owner, balance) VALUES ('more', 1)"


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites.level(tmp_path)


def write(sites: list[Path]) -> None:
    """One transaction, at the site that is opened."""
    connection = connect(sites)
    try:
        connection.execute(INSERT)
        connection.commit()
    finally:
        connection.close()


def test_it_opens_the_primary_wherever_that_is_and_follows_a_change(sites: Sites) -> None:
    both = [sites.primary.path, sites.secondary.path]
    for order in (both, both[::-1]):
        before = sites.last_seqno(sites.primary)
        write(order)
        assert sites.last_seqno(sites.primary) == before + 1
    sites.switch()
    before = sites.last_seqno(sites.primary)
    write(both)
    assert sites.last_seqno(sites.primary) == before + 1
    sites.catch_up()
    assert_equal(sites)


def test_where_none_takes_writes_each_is_named(sites: Sites, tmp_path: Path) -> None:
    become_secondary(sites.primary)
    missing = tmp_path / "nowhere"
    with pytest.raises(OperationalError) as caught:
        connect([sites.primary.path, sites.secondary.path, missing])
    assert isinstance(caught.value, NotPrimaryError)
    for told in (
        f"{sites.primary.name} is secondary",
        f"{sites.secondary.name} is secondary",
        f"{missing}: there is no",
    ):
        assert told in str(caught.value)


def test_a_site_that_was_superseded_is_passed_over(sites: Sites) -> None:
    old, new = sites.primary.path, sites.secondary.path
    sites.take_over()
    with pytest.raises(DatabaseError, match="more than one of these takes writes") as caught:
        connect([old, new])
    assert isinstance(caught.value, ConfigurationError)
    assert meet(sites.secondary, other(sites.primary)) is not None
    before = sites.last_seqno(sites.primary)
    write([old, new])
    assert sites.last_seqno(sites.primary) == before + 1
    with pytest.raises(OperationalError, match="superseded by"):
        connect([old])


def test_one_is_named_as_before_and_no_list_is_empty(sites: Sites) -> None:
    connect(os.fspath(sites.primary.path)).close()
    with pytest.raises(DatabaseError) as caught:
        connect([])
    assert isinstance(caught.value, UsageError)
    assert become_primary(sites.primary) == 0
