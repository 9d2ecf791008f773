"""Replays and seeds that are under way while roles change, with real processes. Of archives:
tests/spark/test_archive_roles.py.

Guarantees: each of them ends well, or stops with one clear error; what it stopped at loses nothing; given again, the
same command ends the same; and all sites are equal in the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.both_sites import KEPT, Both
from tests.harness.street import QUICK, assert_same_databases, state_of
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.slow
LARGE = ", ".join(f"({n}, zeroblob(4000))" for n in range(300))


class Beside(Both):
    """Two sites that may each be primary, and `third`, which is filled and then left behind."""

    def start(self) -> Beside:
        super().start()
        self.third = self.directory / "third"
        self.others.append(self.third)
        network = json.loads(self.on(self.primary, "--json", "instance", "show").stdout)["network"]
        self.run("instance", "create", self.third, "--role", "secondary", "--name", "third", "--network", network)
        self._set(self.third)
        base = self.directory / "third.seed"
        self.on(self.primary, "peer", "add", "third", "127.0.0.1:1")
        self.on(self.primary, "seed", "--to-file", base, "--for", "third")
        self.on(self.third, "seed", "--from-file", base)
        return self

    def write_on(self, instance: Path, seed: int) -> int:
        """Several pieces of a replay, and several sealed segments: large transactions are both. The last number."""
        was = self.primary
        self.primary = instance
        try:
            for turn in range(2):
                self.finish([self.writer(10 * seed + turn, count=20, seed=seed + turn)])
                self.write(f"INSERT INTO loose VALUES {LARGE}")
            self.finish([self.writer(10 * seed + 2, count=5, seed=seed)])
            return self.last_seqno(instance)
        finally:
            self.primary = was

    def write_lost(self) -> int:
        """On the primary; nothing that another site writes is in its way. The last number."""
        for turn in range(2):
            for number in range(5):
                self.write(f"INSERT INTO kept VALUES ('lost {turn}', {number})")
            self.write(f"INSERT INTO loose VALUES {LARGE}")
        return self.write("INSERT INTO kept VALUES ('lost', 1)")

    def begun(self, failpoint: str, instance: Path, *words: str | Path) -> subprocess.Popen[str]:
        """A command in a process of its own, which stands still at a failpoint."""
        process = subprocess.Popen(
            [sys.executable, "-m", "replicate.cli.main", "-i", str(instance), *map(str, words)],
            env={**self.environment, "REPLICATE_FAILPOINT": f"{failpoint}:stop"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        wait_until(lambda: state_of(process.pid) in "TZ", what=f"it stands at {failpoint}", timeout_s=60)
        assert process.poll() is None, process.communicate()
        return process

    def goes_on(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Until its end."""
        os.kill(process.pid, signal.SIGCONT)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def third_follows(self) -> None:
        """The third site meets the primary of now, takes back what it has more than that one ever had, and has all that
        this one has in the end."""
        self.on(self.third, "receiver", "start", "--no-update", "--auto-rollback", "--listen", "127.0.0.1:0")
        listen = self.daemon(self.third, "receiver")["facts"]["listen"]
        self.on(self.primary, "peer", "add", "--replace", "third", listen)
        self.on(self.primary, "source", "start", "--peer", "third")
        self.on(self.third, "update", "start")
        last = self.write("INSERT INTO audit VALUES ('third', 1)")
        self.follows(self.third, last)
        assert_same_databases(self.path_of(self.primary), self.path_of(self.third))


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    made = Beside(tmp_path, settings=QUICK, schema=KEPT).build()
    try:
        assert isinstance(made, Beside)
        yield made.start()
    finally:
        made.close()


def problems(both: Both) -> list[str]:
    """What bars a switchover."""
    done = both.on(both.primary, "--json", "switchover", "--to", both.secondary.name, "--dry-run", check=False)
    found = json.loads(done.stdout) if done.stdout else {"what": done.stderr}
    return list(found["problems"]) if "problems" in found else [found["what"]]


def test_a_replay_from_the_journal_of_one_that_hands_its_role_over(beside: Beside) -> None:
    """It ends with what it was to bring; what the new primary writes comes from the same journal by the next one."""
    last = beside.write_on(beside.primary, 1)
    wait_until(lambda: beside.last_seqno(beside.secondary) == last, what="the secondary has all")
    running = beside.begun("replay.committed:1", beside.third, "--json", "replay", "--journal", beside.primary)
    beside.switch("--to", "secondary")
    beside.exchange()
    done = beside.goes_on(running)
    assert (done.returncode, json.loads(done.stdout)["seqno"]) == (0, last), done.stderr
    later = beside.write("INSERT INTO audit VALUES ('later', 1)")
    beside.on(beside.secondary, "wait", "--seqno", str(later), "--timeout", "60")
    again = beside.on(beside.third, "--json", "replay", "--journal", beside.secondary)
    assert json.loads(again.stdout)["seqno"] == later
    beside.third_follows()
    beside.equal()


def test_a_site_that_is_being_replayed_takes_no_role_until_that_has_ended(beside: Beside) -> None:
    """Each command that would change its role says why it does not, and changes nothing."""
    beside.on(beside.secondary, "receiver", "stop")
    last = beside.write_on(beside.primary, 1)
    running = beside.begun("replay.committed:1", beside.secondary, "--json", "replay", "--journal", beside.primary)
    to_it = ("switchover", "--to", "secondary", "--timeout", "2")
    busy = "another seed, replay, rebuild or change of role of secondary is under way"
    for instance, words, code, text in (
        (beside.primary, to_it, 1, "secondary is not served by primary now"),
        (beside.secondary, ("switchover",), 69, "receiver does not run, and a switchover goes through it"),
        (beside.secondary, ("promote", "--force", "--timeout", "2"), 75, busy),
        (beside.secondary, ("rollback", "--to", "2", "--timeout", "2"), 75, busy),
    ):
        done = beside.on(instance, *words, check=False)
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert [beside.role(one) for one in (beside.primary, beside.secondary)] == ["primary", "secondary"]
    done = beside.goes_on(running)
    assert (done.returncode, json.loads(done.stdout)["seqno"]) == (0, last), done.stderr
    beside.all_start()
    wait_until(lambda: not problems(beside), what="both sites are ready")
    beside.switch("--to", "secondary")
    beside.exchange()
    beside.equal()


@pytest.mark.turns(2)
@pytest.mark.parametrize("failpoint", ["replay.read:1", "replay.committed:1", "replay.large:2", "replay.committed:3"])
def test_a_replay_from_a_journal_that_is_taken_back(beside: Beside, failpoint: str) -> None:
    """Another site took over, and the old primary goes back. What the third site has of it by then it takes back, too,
    and each transaction that was taken back is applied once, from whichever of the two files it is."""
    common = beside.write_on(beside.primary, 1)
    wait_until(lambda: beside.last_seqno(beside.secondary) == common, what="the secondary has all")
    beside.host_is_lost(beside.primary)
    lost = beside.write_lost()
    running = beside.begun(failpoint, beside.third, "replay", "--journal", beside.primary)
    beside.on(beside.secondary, "promote", "--force")
    beside.on(beside.primary, "demote")
    beside.on(beside.primary, "rollback", "--to", str(common))
    done = beside.goes_on(running)
    assert done.returncode == 75, done.stdout + done.stderr
    assert f"taken back to transaction {common} while it was read, and went up to {lost} before" in done.stderr
    assert f"-i {beside.third} rollback" in done.stderr
    beside.exchange()
    beside.all_start()
    stands = beside.last_seqno(beside.third)
    again = beside.on(beside.third, "replay", "--journal", beside.secondary, check=False)
    if stands <= common:
        assert (again.returncode, beside.last_seqno(beside.third) >= common) == (0, True), again.stderr
    else:  # that journal tells another history by now, or ends before
        assert again.returncode == 0 or "DIVERGED" in again.stderr, again.stderr
        assert beside.last_seqno(beside.third) == stands
    beside.third_follows()
    files = sorted(beside.directory.glob("*-lost-*.jsonl"))
    names = [one.name for one in files]
    assert f"primary-lost-{common + 1}-{lost}.jsonl" in names
    assert any(name.startswith("third-lost-") for name in names) == (stands > common), names
    numbers: set[int] = set()
    for name in [f"primary-lost-{common + 1}-{lost}.jsonl", *(one for one in names if one.startswith("third-lost"))]:
        done = json.loads(beside.on(beside.primary, "--json", "lost", "apply", beside.directory / name).stdout)
        found = {number for as_seqnos in done["as_seqnos"].values() for number in as_seqnos}
        assert (len(done["applied"]), done["conflicts"]) == (len(found), [])
        assert found <= numbers or not numbers, "those of the third site are there already"
        numbers |= found
    assert len(numbers) == lost - common
    beside.equal()


@pytest.mark.parametrize("from_connection", [False, True])
def test_a_seed_from_one_that_hands_its_role_over(beside: Beside, *, from_connection: bool) -> None:
    """It ends with what it copied, and the site goes on from the new primary."""
    common = beside.write_on(beside.primary, 1)
    wait_until(lambda: beside.last_seqno(beside.secondary) == common, what="the secondary has all")
    if from_connection:
        beside.on(beside.third, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
        listen = beside.daemon(beside.third, "receiver")["facts"]["listen"]
        beside.on(beside.primary, "peer", "add", "--replace", "third", listen)
        beside.on(beside.primary, "source", "start", "--peer", "third")
        running = beside.begun("seed.received:1", beside.third, "--json", "seed", "--restart")
    else:
        running = beside.begun(
            "seed.journal_begun:1", beside.third, "--json", "seed", "--restart", "--from", beside.primary
        )
    beside.switch("--to", "secondary")
    beside.exchange()
    done = beside.goes_on(running)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["seqno"] >= common
    if from_connection:
        beside.on(beside.third, "receiver", "stop")
    beside.third_follows()
    beside.equal()


def test_a_site_that_is_being_seeded_takes_no_role_until_that_has_ended(beside: Beside) -> None:
    """Each command that would change its role says why it does not, and changes nothing."""
    for name in ("update", "receiver"):
        beside.on(beside.secondary, name, "stop")
    running = beside.begun(
        "seed.journal_begun:1", beside.secondary, "--json", "seed", "--restart", "--from", beside.primary
    )
    last = beside.write("INSERT INTO audit VALUES ('meanwhile', 1)")
    half = "this secondary has been seeded only in part"
    busy = "another seed, replay, rebuild or change of role of secondary is under way"
    for instance, words, code, text in (
        (beside.primary, ("switchover", "--to", "secondary", "--timeout", "2"), 1, "is not served by primary now"),
        (beside.secondary, ("promote", "--force", "--timeout", "2"), 69, half),
        (beside.secondary, ("rollback", "--to", "2", "--timeout", "2"), 75, busy),
    ):
        done = beside.on(instance, *words, check=False)
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert [beside.role(one) for one in (beside.primary, beside.secondary)] == ["primary", "secondary"]
    done = beside.goes_on(running)
    assert done.returncode == 0, done.stdout + done.stderr
    beside.all_start()
    beside.on(beside.secondary, "wait", "--seqno", str(last), "--timeout", "60")
    wait_until(lambda: not problems(beside), what="both sites are ready")
    beside.switch("--to", "secondary")
    beside.exchange()
    beside.equal()


def test_a_copy_of_what_is_taken_back_meanwhile_is_made_again(beside: Beside) -> None:
    """A site is seeded from an old primary that another one has taken over from, and that goes back meanwhile. What the
    copy had is no witness of what the old primary must hold: it starts, and serves as a secondary."""
    common = beside.write_on(beside.primary, 1)
    wait_until(lambda: beside.last_seqno(beside.secondary) == common, what="the secondary has all")
    beside.host_is_lost(beside.primary)
    lost = beside.write_lost()
    running = beside.begun(
        "seed.journal_begun:1", beside.third, "--json", "seed", "--restart", "--from", beside.primary
    )
    beside.on(beside.secondary, "promote", "--force")
    beside.on(beside.primary, "demote")
    beside.on(beside.primary, "rollback", "--to", str(common))
    done = beside.goes_on(running)
    assert done.returncode == 75, done.stdout + done.stderr
    assert f"was taken back while it was copied as of transaction {lost}" in done.stderr
    beside.exchange()
    beside.all_start()
    beside.on(beside.primary, "peer", "add", "third", "127.0.0.1:1")
    beside.on(beside.third, "seed", "--restart", "--from", beside.primary)
    beside.third_follows()
    assert not list(beside.directory.glob("third-lost-*.jsonl"))
    beside.equal()
