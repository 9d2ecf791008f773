"""admin/subscriptions.py: the journal of a secondary with some partitions says so itself, wherever it is copied to."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.admin import subscriptions
from replicate.audit.query import Query
from replicate.audit.verify import verify_journal
from replicate.cli.root import root
from replicate.door.recovery.opening import SEEDING_MARKER
from replicate.errors import NotFoundError, UsageError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.header import PARTIAL
from replicate.model.table_wish import TableWish
from replicate.system import failpoint
from tests.harness import forking
from tests.harness.instances import lose_pool
from tests.harness.pair import Pair
from tests.replicate.admin.test_subscriptions import assert_restricted, write
from tests.replicate.admin.test_subscriptions import pair as pair
from update_process.replay.audited import find_in_journals
from update_process.replay.command import require_own_words, require_whole_journal


class Died(Exception):
    pass


def flags(pair: Pair) -> list[bool]:
    """Of each segment of the secondary's journal, oldest first."""
    chain = Chain(pair.secondary.journal_directory)
    return [chain.segment(number).header.is_partial for number in chain.first_seqnos()]


def bare(pair: Pair) -> Path:
    """The secondary's segments alone."""
    path = pair.directory / "bare"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    chain = Chain(pair.secondary.journal_directory)
    for number in chain.first_seqnos():
        shutil.copy2(chain.path_of(number), path)
    return path


def test_from_its_first_seed_on(pair: Pair) -> None:
    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    write(pair, "INSERT INTO t0 (v) VALUES (1)")
    pair.catch_up()
    assert flags(pair) == [True]
    assert not Chain(pair.primary.journal_directory).is_partial()


def test_of_some_rows_or_columns_likewise(pair: Pair) -> None:
    subscriptions.filter_(pair.secondary, "t0", TableWish(("id",), "").text)
    pair.seed()
    assert pair.secondary.content.held is None
    assert flags(pair) == [True]


def test_a_whole_one_says_nothing_until_it_gives_some_up(pair: Pair) -> None:
    pair.seed()
    write(pair, "INSERT INTO t0 (v) VALUES (1)")
    pair.catch_up()
    assert flags(pair) == [False]
    require_whole_journal(bare(pair))
    subscriptions.set_(pair.secondary, ["sales"])
    assert flags(pair) == [False, True]
    write(pair, "INSERT INTO t0 (v) VALUES (2)")
    pair.catch_up()
    assert flags(pair) == [False, True]
    subscriptions.add(pair.secondary, ["stock"])
    subscriptions.remove(pair.secondary, ["stock"])
    assert flags(pair) == [False, True]
    assert_restricted(pair, {2})
    subscriptions.set_(pair.secondary, ["ALL"])
    assert flags(pair) == [False, True]
    pair.seed(restart=True)
    assert flags(pair) == [False]


def test_right_after_a_seed_where_the_segment_is_empty(pair: Pair) -> None:
    pair.seed()
    subscriptions.set_(pair.secondary, ["sales"])
    assert flags(pair) == [True]
    write(pair, "INSERT INTO t0 (v) VALUES (1)")
    pair.catch_up()
    assert flags(pair) == [True]
    assert_restricted(pair, {2})


def test_killed_between_the_mark_and_the_subscription(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says less than it has, never more."""

    def die(name: str) -> None:
        assert name == "subscription.marked"
        raise Died

    pair.seed()
    write(pair, "INSERT INTO t0 (v) VALUES (1)")
    pair.catch_up()
    with monkeypatch.context() as patched:
        patched.setattr(subscriptions, "hit", die)
        with pytest.raises(Died):
            subscriptions.set_(pair.secondary, ["sales"])
    assert (flags(pair), pair.secondary.content.held) == ([False, True], None)
    write(pair, "INSERT INTO t0 (v) VALUES (2)")
    pair.catch_up()
    assert_restricted(pair, {1, 2, 3, 4})
    subscriptions.set_(pair.secondary, ["sales"])
    assert flags(pair) == [False, True]


def killed_at(step: str, call: Callable[[], object]) -> None:
    """A process that makes the call dies there, and its pool stays."""

    def live() -> int:
        failpoint.arm(f"{step}:1:kill")
        call()
        return 0

    pids: list[int] = []
    forking.fork(live, pids.append)
    _, status = os.waitpid(pids[0], 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, step


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("is_pool_lost", [True, False])
@pytest.mark.parametrize(
    "step",
    ["switch.before_create", "switch.after_create", "switch.between_words", "subscription.marked", "replace.renamed"],
)
def test_killed_at_each_step_the_journal_goes_on(pair: Pair, step: str, is_empty: bool, is_pool_lost: bool) -> None:
    """Nothing is lost; what is not whole is never called whole; given again, it is done."""
    pair.seed()
    if not is_empty:
        write(pair, "INSERT INTO t0 (v) VALUES (1)")
        pair.catch_up()
    killed_at(step, lambda: subscriptions.set_(Instance.open(pair.secondary.path), ["sales"]))
    if is_pool_lost:
        lose_pool(pair.secondary)
    pair.secondary.reload()
    write(pair, "INSERT INTO t0 (v) VALUES (2)")
    pair.catch_up()
    assert_restricted(pair, {1, 2, 3, 4} if pair.secondary.content.held is None else {2})
    assert pair.secondary.content.held is None or flags(pair)[-1]
    subscriptions.set_(pair.secondary, ["sales"])
    write(pair, "INSERT INTO t0 (v) VALUES (3)")
    pair.catch_up()
    assert_restricted(pair, {2})
    assert flags(pair)[-1]
    assert verify_journal(pair.secondary).findings == ()


def test_where_a_seed_was_killed_the_next_one_says_it(pair: Pair) -> None:
    pair.seed()
    (pair.secondary.path / SEEDING_MARKER).touch()
    subscriptions.set_(pair.secondary, ["sales"])
    assert pair.secondary.content.held == (2,)
    assert flags(pair) == [False]
    pair.seed(restart=True)
    assert flags(pair) == [True]


def test_bare_segments_pass_for_nothing_else(pair: Pair) -> None:
    subscriptions.set_(pair.secondary, ["sales"])
    pair.seed()
    write(pair, "INSERT INTO t0 (v) VALUES (1)")
    pair.catch_up()
    path = bare(pair)
    refused = "the journal is that of a secondary that gets some partitions, rows or columns only, or what a filter"
    with pytest.raises(UsageError, match=refused):
        require_whole_journal(path)
    with pytest.raises(UsageError, match=refused):
        require_own_words(pair.primary, [pair.primary.path, path])
    with pytest.raises(UsageError, match="gets some partitions, rows or columns only, or what"):
        find_in_journals([str(path), str(pair.primary.path)], Query(), pair.directory)
    with pytest.raises(NotFoundError):
        require_whole_journal(pair.directory / "nowhere")
    shown = CliRunner().invoke(root, ["audit", "show", "--journal", str(path)])
    assert shown.exit_code == 0, shown.output
    assert f"Note: the journal is of {PARTIAL}." in shown.stderr
    whole = CliRunner().invoke(root, ["audit", "show", "--journal", str(pair.primary.path)])
    assert "Note" not in whole.stderr
