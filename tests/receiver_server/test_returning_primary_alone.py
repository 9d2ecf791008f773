"""receiver_server/returning_primary.py without processes: when it goes back by itself, and when it does not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from receiver_server import returning_primary as module
from receiver_server.returning_primary import Returning
from replicate.daemon.daemon import DaemonContext
from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.errors import ConflictError, DiskFullError, PeerUnreachableError
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from replicate.roles.source_refusal import note_verdict
from replicate.settings.load import Config
from replicate.transfer.seed.install import Seeded
from tests.harness.pair import assert_equal
from tests.harness.parted import carried
from tests.harness.servers import ListLog
from tests.harness.sites import Sites, kill_at
from tests.replicate.roles.test_source_refusal import begun_again, note, part

BY_ITSELF = {"receiver.auto_rollback": "true"}


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites.level(tmp_path)


class Daemon:
    """The part of a Receiver Server that goes back."""

    def __init__(self, instance: Instance, settings: dict[str, object] | None = None) -> None:
        self.log = ListLog()
        self.context = DaemonContext(
            "receiver",
            instance.path,
            config=Config().with_values(BY_ITSELF if settings is None else settings),
            log=cast(Any, self.log),
        )
        self.instance = Instance.open(instance.path)
        self.returning = Returning(self.context, self.instance)

    def go_back(self) -> str:
        """What bars the way then, "" for nothing."""
        trio.run(self.returning.go_back)
        assert not self.context.asks_aside
        return self.returning.problem


def last(sites: Sites) -> int:
    return sites.last_seqno(Instance.open(sites.secondary.path))


def follows(sites: Sites) -> None:
    sites.secondary = Instance.open(sites.secondary.path)
    sites.catch_up()
    assert_equal(sites)


@pytest.mark.parametrize("lost", [1, 4])
def test_ahead_it_goes_back_and_follows(sites: Sites, lost: int) -> None:
    common = part(sites, lost)
    verdict = note(sites)
    daemon = Daemon(sites.secondary)
    daemon.returning.heard(verdict)
    assert daemon.returning.wanted.is_set()
    assert (daemon.go_back(), last(sites)) == ("", common)
    assert not daemon.returning.wanted.is_set()
    (file,) = sites.directory.glob("east-lost-*.jsonl")
    assert len(carried(file)) == lost
    assert daemon.go_back() == "", "there is nothing to go back from any more"
    follows(sites)


def test_it_comes_back_twice(sites: Sites) -> None:
    """Each time what it has more is in a file of its own, and everything is in one file once."""
    for number in (1, 2):
        common = part(sites, 2)
        note(sites)
        assert (Daemon(sites.secondary).go_back(), last(sites)) == ("", common)
        follows(sites)
        files = list(sites.directory.glob("east-lost-*.jsonl"))
        assert len(files) == number
        all_of_them = [one for file in files for one in carried(file)]
        assert len(all_of_them) == len(set(all_of_them)) == 2 * number
        sites.switch()  # and the old one is primary again
        sites.catch_up()


def test_an_incarnation_in_which_nothing_was_written_goes_by_itself(sites: Sites) -> None:
    """No source can say where it began."""
    common = begun_again(sites)
    verdict = note(sites)
    assert not verdict.ended_by
    daemon = Daemon(sites.secondary)
    daemon.returning.heard(verdict)
    assert daemon.returning.wanted.is_set()
    assert (daemon.go_back(), last(sites)) == ("", common)
    assert list(sites.directory.glob("east-lost-*")) == []
    follows(sites)


def test_behind_or_level_there_is_nothing_to_do(sites: Sites) -> None:
    sites.take_over()
    sites.write(2)
    become_secondary(sites.secondary)
    assert Daemon(sites.secondary).go_back() == ""
    follows(sites)


def test_nothing_is_done_unasked(sites: Sites) -> None:
    part(sites)
    verdict, before = note(sites), last(sites)
    daemon = Daemon(sites.secondary, {})
    daemon.returning.heard(verdict)
    assert not daemon.returning.wanted.is_set()
    assert (daemon.go_back(), last(sites)) == ("", before)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ended_by": ""}, ""),
        ({"more_from": 0}, "nobody has taken over"),
        ({"ended_by": "east"}, "nobody has taken over"),  # it began again itself, from a backup
        ({"more_from": 2}, "is another one here"),
        ({"origin": 1}, "no source has refused"),
    ],
)
def test_what_the_own_journal_does_not_prove_is_not_followed(sites: Sites, changed: dict[str, Any], why: str) -> None:
    part(sites)
    verdict, before = note(sites, **changed), last(sites)
    daemon = Daemon(sites.secondary)
    assert why in daemon.go_back()
    assert bool(daemon.returning.problem) == bool(why)
    assert last(sites) == before
    assert list(sites.directory.glob("east-lost-*")) == []
    told = len(daemon.log.lines)
    daemon.returning.heard(verdict)
    daemon.go_back()
    assert (len(daemon.log.lines), daemon.returning.wanted.is_set()) == (told, False), "it is tried once for one word"


def test_across_a_schema_change_it_says_how_to_seed(sites: Sites) -> None:
    connection = sites.connect()
    connection.execute("ALTER TABLE entry ADD COLUMN more")
    connection.commit()
    connection.close()
    part(sites, 1)
    note(sites)
    before = last(sites)
    daemon = Daemon(sites.secondary)
    assert "cannot be taken back" in daemon.go_back()
    (line,) = [fields for level, _, fields in daemon.log.lines if level == "error"]
    assert f"replicate -i {sites.secondary.path} seed --restart" in line["error"] or "seed --restart" in line["error"]
    assert last(sites) == before
    assert len(list(sites.directory.glob("east-lost-*.jsonl"))) == 1, "it is there all the same"
    sites.seed(restart=True)
    follows(sites)


def barred(sites: Sites, settings: dict[str, object]) -> Daemon:
    """It has gone as far back as it can: what it has more changes the schema."""
    connection = sites.connect()
    connection.execute("ALTER TABLE entry ADD COLUMN more")
    connection.commit()
    connection.close()
    part(sites, 1)
    note(sites)
    daemon = Daemon(sites.secondary, settings)
    assert "cannot be taken back" in daemon.go_back()
    return daemon


def test_across_a_schema_change_a_copy_is_asked_for_until_it_comes(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = barred(sites, {**BY_ITSELF, "receiver.auto_seed": "true"})
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    tries: list[bool] = []

    def asked(instance: Instance, source: str | None, *, restart: bool, told: Any) -> Any:
        tries.append(restart)
        if len(tries) < 3:
            raise PeerUnreachableError("no source has connected")
        return Seeded(7, ("main",), 1)

    monkeypatch.setattr("replicate.transfer.seed.request.seed_over_connection", asked)
    trio.run(daemon.returning.fill_again)
    assert (tries, daemon.returning.problem) == ([True] * 3, "")
    events = [event for _, event, _ in daemon.log.lines]
    assert events.count("could not be filled again by itself") == 1, "the same is said once"
    assert events[-1] == "filled again by itself"


def test_no_copy_is_asked_for_where_none_is_wanted(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that is not set; and where an operator's own seed was quicker, which is another incarnation."""
    daemon = barred(sites, {**BY_ITSELF, "receiver.auto_seed": "true"})
    monkeypatch.setattr("replicate.transfer.seed.request.seed_over_connection", None)  # to be called is an error
    without = Daemon(sites.secondary)
    assert "cannot be taken back" in without.go_back()
    trio.run(without.returning.fill_again)
    sites.seed(restart=True)
    trio.run(daemon.returning.fill_again)
    follows(sites)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["lost_written", "marked", "piece_undone", "region_undone", "cut", "before_end"])
def test_killed_anywhere_it_is_finished_at_the_next_start(sites: Sites, place: str) -> None:
    common = part(sites)
    note(sites)
    code = kill_at(f"rollback.{place}:1", "replicate.roles.rollback:rollback", sites.secondary.path, common)
    assert code == -signal.SIGKILL
    assert (Daemon(sites.secondary).go_back(), last(sites)) == ("", common)
    assert not (sites.secondary.path / ROLLBACK_MARKER).exists()
    assert len(list(sites.directory.glob("east-lost-*.jsonl"))) == 1
    follows(sites)


def test_a_full_disk_in_the_middle_is_waited_for_and_a_wrong_row_is_not(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = part(sites)
    note(sites)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    assert kill_at("rollback.marked:1", "replicate.roles.rollback:rollback", sites.secondary.path, common)
    errors: list[Exception] = [DiskFullError("no space left"), ConflictError("a row differs"), DiskFullError("again")]
    told: list[str] = []

    def failing(instance: Instance, to: int | None, *, by: str) -> Any:
        if errors:
            raise errors.pop(0)
        return rollback(instance, to, by=by)

    monkeypatch.setattr("replicate.roles.rollback.rollback", failing)
    daemon = Daemon(sites.secondary)
    assert "a row differs" in daemon.go_back(), "the receiver serves, so that it can be seeded"
    told = [fields["code"] for _, _, fields in daemon.log.lines if "code" in fields]
    assert told == ["DISK_FULL", "CONFLICT"]
    assert (Daemon(sites.secondary).go_back(), last(sites)) == ("", common)
    follows(sites)


def test_what_passes_is_tried_again_when_the_source_says_it_again(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = part(sites)
    verdict = note(sites)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> Any:
            raise DiskFullError("no space left")

        patch.setattr("replicate.roles.rollback.rollback", full)
        daemon = Daemon(sites.secondary)
        assert "no space left" in daemon.go_back()
    daemon.returning.heard(verdict)
    assert daemon.returning.wanted.is_set()
    assert (daemon.go_back(), last(sites)) == ("", common)


def test_a_primary_does_nothing(sites: Sites) -> None:
    part(sites)
    verdict = note(sites)
    become_primary(sites.secondary)
    before = last(sites)
    note_verdict(sites.secondary, verdict)  # of the incarnation before
    assert (Daemon(sites.secondary).go_back(), last(sites)) == ("", before)
