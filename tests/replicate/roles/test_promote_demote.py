"""`promote` and `demote`, as an operator gives them: what they refuse, what they do first, and what they say."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from replicate.cli import main
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_heard import Heard
from replicate.daemon.status_file import DaemonStatus
from replicate.filters.whose_words import Content, note_content
from replicate.instance.instance import Instance
from replicate.limits import MIB
from replicate.pool.receive_pool import ReceivePool
from replicate.pool.shared_memory import PoolKind, retire
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.given_role import note_given
from replicate.roles.promote_demote import PROMOTION
from replicate.transfer.seed.install import seed_lock
from tests.harness.machine_tools import small_disk
from tests.harness.pair import assert_equal
from tests.harness.sites import Sites


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites.level(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """A command of an instance: its exit code, what it printed (JSON where it did), and its error."""

    def command(instance: Instance, *words: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = main.run(["-i", str(instance.path), "--json", *words])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out and not code else out, err

    return command


def heard(instance: Instance, ago_s: float) -> None:
    """The Receiver Server of the instance ran, and heard its source so long ago."""
    files = DaemonFiles(instance.path, "receiver")
    files.lock.make_directories()
    facts = Heard(time.monotonic(), time.monotonic_ns() - int(ago_s * 1e9)).facts()
    files.status.write(DaemonStatus("receiver", 0, "stopped", "", 0, 0, facts))


def test_promote_applies_what_was_received_and_says_what_may_be_missing(sites: Sites, run: Any) -> None:
    sites.write(4)
    with sites.receive_pool() as pool:
        received = sites.deliver(pool, upto=6)
        pool.note_source(sites.last_seqno() + 1, time.time_ns(), time.monotonic_ns(), 1000)
        code, made, _ = run(sites.secondary, "promote", "--expect", "6")
    assert code == 0
    assert received == 6
    assert (made["seqno"], made["source"], made["source_seqno"], made["missing_at_most"]) == (6, "east", 10, 4)
    assert made["kept"] is None
    assert any("source start --peer east" in line for line in made["next"])
    assert any("rollback --to 6" in line for line in made["next"])
    sites.exchange()
    assert sites.write(1) == 8
    assert sites.primary.content.network == sites.secondary.content.network


def test_promote_says_that_a_filter_was_on_the_way(sites: Sites, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    note_content(sites.secondary.run_directory, None, Content("ab" * 16, "east", "people:upgrade 1"))
    assert main.run(["-i", str(sites.secondary.path), "promote", "--force"]) == 0
    assert "what it has is what the filter people:upgrade 1 told of it" in capsys.readouterr().out
    code, made, _ = run(sites.secondary, "promote", "--force")
    assert (code, made["filter"]) == (0, "people:upgrade 1")


def test_without_a_pool_nobody_knows_what_is_missing(sites: Sites, run: Any, capsys: Any) -> None:
    retire(PoolKind.RECEIVE, sites.secondary.content.uuid)
    assert main.run(["-i", str(sites.secondary.path), "promote"]) == 0
    assert "are missing is not known" in capsys.readouterr().out
    again = ["-i", str(sites.secondary.path), "promote"]
    assert main.run(again) == 0
    told = capsys.readouterr().out
    assert "is primary already, since transaction 5, when it took over from east; nothing was changed" in told
    assert "may be missing" not in told
    code, made, _ = run(sites.secondary, "promote")  # once more: it is primary
    assert (code, made["missing_at_most"], made["was_primary"], made["by_switchover"]) == (0, None, True, False)


def test_given_again_after_a_switchover_it_says_that_nothing_is_missing(sites: Sites, run: Any, capsys: Any) -> None:
    """It said that nobody knows how many are missing."""
    seqno = sites.switch()
    note_given(sites.primary)
    assert main.run(["-i", str(sites.primary.path), "promote"]) == 0
    told = capsys.readouterr().out
    assert f"is primary already, since transaction {seqno}: east gave it the role in a switchover, and nothing" in told
    code, made, _ = run(sites.primary, "promote")
    assert (code, made["missing_at_most"], made["next"]) == (0, 0, [])
    # It counts in that incarnation only.
    become_secondary(sites.primary)
    become_primary(sites.primary)
    assert run(sites.primary, "promote")[1]["by_switchover"] is False


@pytest.mark.parametrize(("ago_s", "refused"), [(1.0, True), (3600.0, False)])
def test_a_source_that_was_heard_a_moment_ago(sites: Sites, run: Any, ago_s: float, refused: bool) -> None:
    heard(sites.secondary, ago_s)
    code, _, err = run(sites.secondary, "promote")
    assert code == (75 if refused else 0)
    if refused:
        assert "two primaries would part" in err
        assert "promote --force" in err
        assert Instance.open(sites.secondary.path).role == "secondary"
        assert run(sites.secondary, "promote", "--expect", str(sites.last_seqno()))[0] == 0
    assert Instance.open(sites.secondary.path).role == "primary"


def test_what_is_expected_and_is_not_so(sites: Sites, run: Any) -> None:
    last = sites.last_seqno()
    code, _, err = run(sites.secondary, "promote", "--expect", str(last + 1))
    assert code == 2
    assert f"is {last}, not {last + 1}; it is still secondary" in err
    assert Instance.open(sites.secondary.path).role == "secondary"


def test_another_number_than_the_one_of_its_promotion_is_refused_afterwards_too(sites: Sites, run: Any) -> None:
    """A command that was killed is given again; one that means something else is told so."""
    last = sites.last_seqno()
    for _ in range(2):
        assert run(sites.secondary, "promote", "--expect", str(last))[0] == 0
    code, _, err = run(sites.secondary, "promote", "--expect", str(last + 1))
    assert code == 2
    assert f"is primary already, since transaction {last}; {last + 1} was expected" in err
    assert run(sites.secondary, "promote")[1]["seqno"] == last


def test_a_primary_that_has_always_been_one(sites: Sites, run: Any, capsys: Any) -> None:
    """The wrong site: nobody believes that the other one was promoted."""
    before = sites.last_seqno()
    code, _, err = run(sites.primary, "promote", "--expect", str(before))
    assert code == 2
    assert f"{sites.primary.name} is primary already, and has taken over from nobody" in err
    assert main.run(["-i", str(sites.primary.path), "promote"]) == 0
    told = capsys.readouterr().out
    assert told == f"{sites.primary.name} is primary already, and has taken over from nobody; nothing was changed\n"
    assert sites.last_seqno() == before


def test_where_the_journal_of_a_primary_finds_no_room(tmp_path: Path, run: Any) -> None:
    disk = tmp_path / "small"
    with small_disk(disk, "96m"):
        sites = Sites.level(disk)
        room = shutil.disk_usage(disk).free
        (disk / "fill").write_bytes(bytes(room - 3 * MIB))
        code, _, err = run(sites.secondary, "promote")
        assert code == 74
        assert f"{sites.secondary.name} is still secondary" in err
        assert Instance.open(sites.secondary.path).role == "secondary"
        (disk / "fill").unlink()
        assert run(sites.secondary, "promote")[0] == 0


def test_a_hole_in_what_was_received_is_kept_under_force(sites: Sites, run: Any) -> None:
    sites.write(4)
    pool = ReceivePool.create(
        sites.secondary.content.uuid, configured_bytes=1 << 22, last_seqno=sites.last_seqno() - 2, replace=True
    )
    try:
        sites.deliver(pool)  # the last two, after a hole
        code, _, err = run(sites.secondary, "promote")
        assert code == 75
        assert "can be applied" in err
        code, made, _ = run(sites.secondary, "promote", "--force")
    finally:
        pool.close()
    assert code == 0
    assert "can be applied" in made["not_applied"]
    assert made["kept"]["transactions"] == 2
    text = Path(made["kept"]["file"]).read_text().splitlines()
    assert json.loads(text[0])["cause"] == PROMOTION
    assert made["seqno"] == 5


def test_a_secondary_without_a_seed(tmp_path: Path, run: Any) -> None:
    sites = Sites.create(tmp_path)
    code, _, err = run(sites.secondary, "promote")
    assert code == 69
    assert "not been seeded" in err


def test_a_region_that_waits_for_its_seed(sites: Sites, run: Any) -> None:
    sites.secondary.note_waiting("second")
    code, _, err = run(sites.secondary, "promote")
    assert code == 69
    assert "region second" in err
    assert Instance.open(sites.secondary.path).role == "secondary"
    assert run(sites.secondary, "promote", "--force")[0] == 0
    promoted = Instance.open(sites.secondary.path)
    assert (promoted.role, promoted.waiting) == ("primary", ())


def test_status_warns_of_no_source_server_towards_a_passive_peer(sites: Sites, run: Any, capsys: Any) -> None:
    def told(instance: Instance) -> str:
        capsys.readouterr()
        main.run(["-i", str(instance.path), "status"])
        return str(capsys.readouterr().out)

    assert "source-west does not run" in told(sites.primary)
    assert run(sites.primary, "demote")[0] == 0
    assert "source-west" not in told(sites.primary)
    main.run(["-i", str(sites.primary.path), "peer", "list"])
    assert "passive" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["promote", "demote"])
def test_a_daemon_that_runs_or_a_seed_under_way(sites: Sites, run: Any, command: str) -> None:
    instance = sites.secondary if command == "promote" else sites.primary
    for name in ("receiver", "update", f"source-{instance.peers[0].name}"):
        fd = DaemonFiles(instance.path, name).lock.acquire()
        try:
            code, _, err = run(instance, command, "--timeout", "0.1")
        finally:
            os.close(fd)
        assert code == 73
        assert f"{name} runs" in err
        assert f"{name.partition('-')[0]} stop" in err
    with seed_lock(instance):
        assert run(instance, command)[0] == 75
    assert Instance.open(instance.path).role == instance.role


def test_demote_says_what_the_peers_lack_and_the_way_on(sites: Sites, run: Any, capsys: Any) -> None:
    sites.acknowledge(sites.last_seqno())
    last = sites.write(2)
    code, made, _ = run(sites.primary, "demote")
    assert code == 0
    assert made["seqno"] == last
    assert made["lacking"] == [["west", 2]]
    assert any(f"promote --expect {last}" in line for line in made["next"])
    assert run(sites.primary, "demote")[1]["seqno"] == last  # once more
    assert main.run(["-i", str(sites.primary.path), "promote"]) == 0  # and back: nothing is lost
    told = capsys.readouterr().out
    assert "it was primary before, and has heard of nobody that was since" in told
    assert "missing" not in told
    sites.primary.reload()
    assert sites.write(1) == last + 2
    sites.catch_up()
    assert_equal(sites)


def test_an_application_that_holds_a_transaction_is_waited_for(sites: Sites, run: Any) -> None:
    connection = sites.connect()
    connection.execute("INSERT INTO account(owner) VALUES ('o')")
    code, _, err = run(sites.primary, "demote", "--timeout", "0.2")
    assert code == 75
    assert "region main" in err
    connection.commit()
    connection.close()
    assert Instance.open(sites.primary.path).role == "primary"
    assert run(sites.primary, "demote")[0] == 0


def test_rollback_by_command(sites: Sites, run: Any, capsys: Any) -> None:
    common = sites.last_seqno()
    sites.write(4)
    assert run(sites.secondary, "promote", "--force")[0] == 0
    sites.exchange()
    assert run(sites.secondary, "rollback", "--to", str(common))[0] == 77, "a primary"
    assert run(sites.secondary, "demote")[0] == 0
    code, seen, _ = run(sites.secondary, "rollback", "--to", str(common), "--dry-run")
    assert (code, seen["is_done"], seen["found"]["changes"]) == (0, False, {"main.main.account": {"INSERT": 4}})
    assert main.run(["-i", str(sites.secondary.path), "rollback", "--to", str(common), "--dry-run"]) == 0
    assert f"can be taken back to {common}" in capsys.readouterr().out
    code, done, _ = run(sites.secondary, "rollback", "--to", str(common))
    assert (code, done["to"], done["last"], done["kept"]["transactions"]) == (0, common, common + 4, 4)
    assert Path(done["kept"]["file"]).exists()
    assert run(sites.secondary, "rollback", "--to", str(common))[1]["kept"] is None  # once more
    sites.secondary.reload()
    sites.catch_up()
    assert_equal(sites)
