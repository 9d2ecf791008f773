"""status/roles.py: what a change of roles has left undone is a finding, and goes when it is done."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.cli import main
from replicate.instance.instance import Instance
from replicate.lost.files import look_at_lost
from replicate.model.findings import Finding
from replicate.roles.change_of_role import become_secondary
from replicate.roles.daemons_down import daemons_down
from replicate.roles.rollback import ROLLBACK, rollback
from replicate.status.collect import collect
from tests.harness.sites import Sites, kill_at


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    """The old primary, `secondary` now, has four transactions that nobody else has."""
    made = Sites.level(tmp_path)
    made.write(4)
    made.take_over()
    become_secondary(made.secondary)
    return made


def found(instance: Instance, *codes: str) -> list[Finding]:
    wanted = codes or ("ROLLBACK_UNFINISHED", "LOST_UNSETTLED")
    return [one for one in collect(Instance.open(instance.path)).findings if one.code in wanted]


def words(do: str) -> Iterator[list[str]]:
    """Of a finding's commands, each after "replicate"."""
    for part in do.split("replicate ")[1:]:
        yield shlex.split(part.partition(";")[0])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["rollback.marked:1", "rollback.region_undone:1", "rollback.cut:1"])
def test_a_rollback_that_was_killed(sites: Sites, place: str, capsys: Any) -> None:
    old = sites.secondary
    common = sites.last_seqno(sites.primary) - 1
    assert found(old) == []
    kill_at(place, "replicate.roles.rollback:rollback", old.path, common)
    (finding,) = found(old, "ROLLBACK_UNFINISHED", "JOURNAL_UNREADABLE", "SEED_INCOMPLETE")
    assert (finding.code, finding.severity) == ("ROLLBACK_UNFINISHED", "error")
    with daemons_down(old, ROLLBACK):  # somebody is finishing it: being busy is no error
        assert found(old, "ROLLBACK_UNFINISHED") == []
        assert found(old, "REPLAY_RUNS")
    (command,) = words(finding.do)
    assert main.run(command) == 0, capsys.readouterr().err
    assert found(old, "ROLLBACK_UNFINISHED", "JOURNAL_UNREADABLE") == []


def test_lost_transactions_wait_until_they_are_applied_or_given_up(sites: Sites, capsys: Any) -> None:
    old = sites.secondary
    common = sites.last_seqno(sites.primary) - 1
    rollback(old, common)
    (file,) = (one.path for one in look_at_lost(old))
    (finding,) = found(old)
    assert (finding.code, finding.severity) == ("LOST_UNSETTLED", "warning")
    assert "4 transactions wait in a lost file" in finding.text
    assert str(file) in finding.text
    assert main.run(["-i", str(old.path), "status"]) == 1
    assert "4 transactions wait in a lost file" in " ".join(capsys.readouterr().out.split())
    apply, settle = words(finding.do)
    assert apply == ["-i", "PRIMARY", "lost", "apply", str(file)]
    assert main.run(["-i", str(sites.primary.path), *apply[2:], "--only", str(common + 1)]) == 0
    assert "3 transactions wait" in found(old)[0].text
    copy = file.with_name("again-lost-1-2.jsonl")
    copy.write_bytes(file.read_bytes())
    copy.rename(file.with_name(file.name.replace("-lost-", "-lost-1-")))
    assert "7 transactions wait in 2 lost files" in found(old)[0].text
    file.with_name(file.name.replace("-lost-", "-lost-1-")).unlink()
    assert main.run([*settle, "--yes"]) == 0
    assert found(old) == []


def test_on_the_primary_the_commands_are_its_own(sites: Sites) -> None:
    path = sites.primary.path.with_name(f"{sites.primary.path.name}-lost-1-1.jsonl")
    path.write_text('{"format": 1}\n{"transactions": 1, "data": 1, "origins": []}\n')
    (finding,) = found(sites.primary)
    assert finding.text.startswith("1 transaction waits in a lost file")
    assert [one[1] for one in words(finding.do)] == [str(sites.primary.path)] * 2
    path.write_text("half")
    (finding,) = found(sites.primary)
    assert "cannot be read: it is not whole" in finding.text
