"""A single primary that was restored from a backup gets back what its peers have of it before it writes."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

import replicate
from replicate.cli import main
from replicate.dbapi import OperationalError
from replicate.door.snapshot import door_of
from replicate.errors import (
    ConfigurationError,
    NotPrimaryError,
    PermissionRefusedError,
    RollbackNeededError,
    TryAgainError,
)
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.restored_primary import NAME, ask, begun_since, settle_answers
from replicate.roles.rollback import rollback
from replicate.roles.source_refusal import SourceVerdict, note_verdict
from replicate.roles.supplier import convert
from replicate.status.collect import collect
from replicate.transfer.packet.export import PACKET_BYTES_MIN, ExportRun, signer_of
from tests.harness.instances import lose_pool
from tests.harness.packets import take
from tests.harness.pair import Pair
from tests.harness.replaying import assert_equal
from tests.harness.sites import kill_at

PATIENCE_S = 20.0


class Backed:
    """East is primary, west gets packets of it; a copy of east's files was made after `common`, and put back after west
    had `last`."""

    def __init__(self, directory: Path) -> None:
        self.pair = Pair.create(directory, "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner, note)")
        self.pair.primary.unregister_peer("west")
        self.pair.primary.register_peer("west", "", 0)
        self.pair.seed()
        self.directory, self.east, self.west = directory, self.pair.primary.path, self.pair.secondary.path
        self.write(self.east, 2)
        self.carry(self.east, self.west)

    def write(self, path: Path, count: int) -> int:
        connection = replicate.connect(path)
        for _ in range(count):
            connection.execute("INSERT INTO account (owner, note) VALUES (?, ?)", (path.name, "x"))
            connection.commit()
        last = connection.last_seqno
        connection.close()
        assert last is not None
        return last

    def carry(self, sender: Path, target: Path, *, receipt: bool = False) -> list[Path]:
        paths = self.export(sender, target, receipt=receipt)
        take(Instance.open(target), *paths)
        return paths

    def export(self, sender: Path, target: Path, *, receipt: bool = False) -> list[Path]:
        """By the real clock: answers count from a moment on."""
        (self.directory / "out").mkdir(exist_ok=True)
        one, targets = Instance.open(sender), (target.name,)
        with ExportRun(one, sign=signer_of(one), release="test", now_ns=time.time_ns) as run:
            if receipt:
                return [run.receipt(targets, self._named).path]
            return [made.path for made in run.increments(targets, self._named, max_bytes=PACKET_BYTES_MIN)]

    def _named(self, name: str) -> Path:
        return self.directory / "out" / name

    def back_up(self) -> None:
        shutil.copytree(self.east, self.directory / "copy" / "east", symlinks=True)
        for file in self.directory.glob("app.db*"):
            shutil.copy(file, self.directory / "copy")

    def restore(self) -> None:
        lose_pool(Instance.open(self.east))
        shutil.rmtree(self.east)
        shutil.copytree(self.directory / "copy" / "east", self.east, symlinks=True)
        for file in self.directory.glob("app.db*"):
            file.unlink()
        for file in (self.directory / "copy").glob("app.db*"):
            shutil.copy(file, self.directory)

    def answer(self) -> None:
        """A receipt there, and a packet with what east lacks back."""
        if all(peer.name != "east" for peer in Instance.open(self.west).peers):
            Instance.open(self.west).register_peer("east", "", 0)
        self.carry(self.east, self.west, receipt=True)
        if not self.carry(self.west, self.east):
            self.carry(self.west, self.east, receipt=True)

    def command(self, *words: str) -> int:
        return main.run(["-i", str(self.east), "replica", "restore", *words])

    def last(self, path: Path) -> int:
        return self.pair.last_seqno(Instance.open(path))

    def equal(self) -> None:
        self.carry(self.east, self.west)
        assert_equal(Pair(self.directory, Instance.open(self.east), Instance.open(self.west)))


@pytest.fixture
def backed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backed:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Backed(tmp_path)
    made.back_up()
    made.write(made.east, 3)
    made.carry(made.east, made.west)
    made.restore()
    return made


def test_it_has_back_what_it_had_before_it_writes(backed: Backed, capsys: pytest.CaptureFixture[str]) -> None:
    had = backed.last(backed.west)
    assert backed.command() == 1
    told = capsys.readouterr().out
    assert "east takes no writes; waited for: west. Then this command again" in told
    assert f"here: replicate -i {backed.east} packet export --to west --receipt" in told
    east = Instance.open(backed.east)
    assert (east.role, east.content.is_restoring) == ("secondary", True)
    assert backed.last(backed.east) < had
    with pytest.raises((NotPrimaryError, OperationalError), match="restored from an older state, and waits until"):
        backed.write(backed.east, 1)
    finding = next(one for one in collect(east).findings if one.code == "RESTORING")
    assert "replicate -i" in finding.do
    assert "west" in finding.text
    assert backed.command() == 1, "nobody has answered yet"
    with pytest.raises(TryAgainError, match="waits for what its peers have of it"):
        main_raises(["-i", str(backed.east), "promote"])
    backed.answer()
    capsys.readouterr()
    assert backed.command() == 0
    assert f"east is primary again, with all transactions up to {had}" in capsys.readouterr().out
    assert not (backed.east / NAME).exists()
    assert "RESTORING" not in {one.code for one in collect(Instance.open(backed.east)).findings}
    assert not list(backed.directory.glob("*-lost-*")), "it had written nothing since"
    assert backed.write(backed.east, 1) == had + 2
    backed.equal()


def with_east_as_peer(backed: Backed) -> Instance:
    west = Instance.open(backed.west)
    west.register_peer("east", "", 0)
    return west


def main_raises(words: list[str]) -> None:
    from tests.replicate.cli.test_partition import said

    said(*words)


def test_what_the_copy_has_committed_is_in_a_lost_file_and_can_be_applied(
    backed: Backed, capsys: pytest.CaptureFixture[str]
) -> None:
    had = backed.last(backed.west)
    backed.write(backed.east, 2)
    to, last, count = begun_since(Instance.open(backed.east))
    assert (last - to, count) == (3, 2)
    assert backed.command() == 2, "it asks, and nobody answers"
    assert Instance.open(backed.east).role == "primary"
    assert backed.command("--yes") == 1
    (file,) = backed.directory.glob("east-lost-*.jsonl")
    assert str(file) in capsys.readouterr().out
    backed.answer()
    assert backed.command() == 0
    assert backed.last(backed.east) == had + 1
    assert main.run(["-i", str(backed.east), "lost", "list"]) == 1
    assert main.run(["-i", str(backed.east), "lost", "apply", str(file), "--on-conflict", "skip"]) == 1
    assert "id taken" in capsys.readouterr().out
    backed.equal()


PLACES = ["role.region_turned:1", "role.pool_retired:1", "role.changed:1", "rollback.marked:1", "rollback.before_end:1"]


@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_the_same_command_goes_on(backed: Backed, place: str) -> None:
    backed.write(backed.east, 1)
    had = backed.last(backed.west)
    assert kill_at(place, "replicate.roles.restored_primary:ask", backed.east) == -signal.SIGKILL
    assert backed.command("--yes") == 1
    backed.answer()
    assert backed.command() == 0
    assert backed.last(backed.east) == had + 1
    assert len(list(backed.directory.glob("east-lost-*.jsonl"))) == 1
    backed.equal()


def test_a_word_from_before_is_no_answer(backed: Backed) -> None:
    """A receipt that lay there says what its sender had then. That of one that has more says what is to be done."""
    with_east_as_peer(backed)
    (path,) = backed.export(backed.west, backed.east, receipt=True)
    with pytest.raises(RollbackNeededError) as caught:
        take(Instance.open(backed.east), path)
    assert f"replicate -i {backed.east} replica restore" in caught.value.do
    assert backed.command() == 1
    with pytest.raises(RollbackNeededError):
        take(Instance.open(backed.east), path)
    backed.carry(backed.east, backed.west, receipt=True)
    take(Instance.open(backed.east), *backed.export(backed.west, backed.east))
    assert settle_answers(Instance.open(backed.east)) == ()


def test_one_that_is_older_than_the_question_counts_for_what_it_brings(backed: Backed) -> None:
    with_east_as_peer(backed)
    assert backed.command() == 1
    backed.carry(backed.east, backed.west, receipt=True)
    old = backed.export(backed.west, backed.east)
    facts = json.loads((backed.east / NAME).read_text())
    (backed.east / NAME).write_text(json.dumps(facts | {"since_ns": time.time_ns()}))
    take(Instance.open(backed.east), *old)
    assert backed.last(backed.east) == backed.last(backed.west)
    assert settle_answers(Instance.open(backed.east)) == ("west",)
    assert backed.command() == 1
    backed.carry(backed.west, backed.east, receipt=True)
    assert backed.command() == 0


def test_each_peer_is_waited_for_also_one_that_has_less(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    north = tmp_path / "north"
    made = Instance.create(north, role="secondary", name="north", network=Instance.open(backed.east).content.network)
    Instance.open(backed.east).register_peer("north", "", 0)
    Pair(tmp_path, Instance.open(backed.east), made).seed()
    backed.write(backed.east, 1)
    backed.back_up()
    backed.write(backed.east, 2)
    backed.carry(backed.east, backed.west)
    backed.restore()
    assert backed.command() == 1
    backed.answer()
    assert settle_answers(Instance.open(backed.east)) == ("north",)
    backed.carry(north, backed.east, receipt=True)
    assert settle_answers(Instance.open(backed.east)) == ()
    assert json.loads((backed.east / NAME).read_text())["answered"].keys() == {"west", "north"}
    assert backed.command() == 0
    backed.equal()


def test_a_peer_that_has_only_the_record_of_the_restored_life_goes_back(tmp_path: Path) -> None:
    """It was sent to before somebody noticed. Nobody took over; but nothing of anybody's is taken back."""
    backed = Backed(tmp_path)
    north = tmp_path / "north"
    made = Instance.create(north, role="secondary", name="north", network=Instance.open(backed.east).content.network)
    Instance.open(backed.east).register_peer("north", "", 0)
    Pair(tmp_path, Instance.open(backed.east), made).seed()
    backed.write(backed.east, 1)
    backed.carry(backed.east, north)
    backed.back_up()
    backed.write(backed.east, 2)
    backed.carry(backed.east, backed.west)
    backed.restore()
    assert not begun_since(Instance.open(backed.east))[2]
    backed.carry(backed.east, north)
    assert backed.command() == 1
    with pytest.raises(RollbackNeededError) as caught:
        backed.carry(north, backed.east, receipt=True)
    to = backed.last(backed.east)
    assert f"rollback --to {to}" in caught.value.do
    assert rollback(Instance.open(north), to).kept is None
    backed.answer()
    backed.carry(north, backed.east, receipt=True)
    assert backed.command() == 0
    backed.write(backed.east, 1)
    backed.carry(backed.east, north)
    assert_equal(Pair(tmp_path, Instance.open(backed.east), Instance.open(north)))
    backed.equal()


def test_without_what_is_waited_for(backed: Backed) -> None:
    assert backed.command() == 1
    assert backed.command("--force", "--yes") == 0
    east = Instance.open(backed.east)
    assert (east.role, east.content.is_restoring) == ("primary", False)
    backed.write(backed.east, 1)


def test_one_that_waits_becomes_no_supplier(backed: Backed) -> None:
    assert backed.command() == 1
    with pytest.raises(ConfigurationError, match="waits until others have brought back what it had"):
        convert(Instance.open(backed.east), "supplier", timeout_s=1)
    backed.answer()
    assert backed.command() == 0


def test_who_has_nothing_to_get_back_is_refused(backed: Backed) -> None:
    with pytest.raises(PermissionRefusedError, match="west is secondary: it gets what it lacks from its source"):
        ask(with_east_as_peer(backed))
    Instance.open(backed.east).unregister_peer("west")
    with pytest.raises(ConfigurationError, match="no peer of east is registered"):
        ask(Instance.open(backed.east))
    assert Instance.open(backed.east).role == "primary"


def test_who_took_over_meanwhile_is_followed(backed: Backed, capsys: pytest.CaptureFixture[str]) -> None:
    assert backed.command() == 1
    become_primary(Instance.open(backed.west), timeout_s=PATIENCE_S)
    backed.write(backed.west, 1)
    backed.answer()
    capsys.readouterr()
    assert backed.command() == 0
    assert capsys.readouterr().out == "west took over: east follows it, and waits for nothing\n"
    east = Instance.open(backed.east)
    assert (east.role, east.content.is_restoring) == ("secondary", False)
    assert_equal(Pair(backed.directory, Instance.open(backed.west), east))


def test_no_incarnation_is_used_twice_where_later_ones_of_its_own_come_back(tmp_path: Path) -> None:
    """It was primary, secondary and primary again since the backup: its own later records are in what comes back."""
    made = Backed(tmp_path)
    made.back_up()
    for _ in range(3):
        become_secondary(Instance.open(made.east))
        become_primary(Instance.open(made.east), timeout_s=PATIENCE_S)
        made.write(made.east, 1)
    made.carry(made.east, made.west)
    with door_of(Instance.open(made.west)) as door:
        before = {one.origin.key for one in door.catalogue_now().histories}
    made.restore()
    assert made.command() == 1
    made.answer()
    assert made.command() == 0
    with door_of(Instance.open(made.east)) as door:
        histories = door.catalogue_now().histories
    keys = [one.origin.key for one in histories]
    assert len(keys) == len(set(keys)) == len(before) + 1
    made.write(made.east, 1)
    made.equal()


def test_a_source_that_has_less_refuses_and_that_is_an_answer(backed: Backed) -> None:
    """By a line it could say nothing else. Where somebody took over there, or the origin was never met, it is none."""
    assert backed.command() == 1
    east = Instance.open(backed.east)
    with door_of(east) as door, door.locked():
        ((origin, _),), incarnation = door.position().vector, east.content.incarnation
        has = door.position().vector.last(origin)
    for common, more_from, by in ((has, 5, ""), (has - 1, 4, "west"), (0, 0, "")):
        note_verdict(east, SourceVerdict("west", incarnation, origin, common, more_from, by))
        assert settle_answers(east) == ("west",), (common, by)
    note_verdict(east, SourceVerdict("west", incarnation - 1, origin, has - 1, 4, ""))
    assert settle_answers(east) == ("west",), "said before it waited"
    note_verdict(east, SourceVerdict("west", incarnation, origin, has - 1, 4, ""))
    assert settle_answers(east) == ()
