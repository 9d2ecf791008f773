"""The note of the last compare: who gets it, what it says, what makes it forgotten; and who shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apsw
import pytest

from replicate.cli import main
from replicate.compare import last_compare as module
from replicate.compare.last_compare import (
    PARTNERS_MAX,
    Compared,
    compared_path,
    forget_compared,
    look_at_compared,
    note_compared,
    note_seeded,
)
from replicate.errors import UsageError
from replicate.instance.instance import Instance
from replicate.status.collect import collect
from tests.harness.pair import Pair

DAY_NS = 86_400 * 10**9


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "east", role="primary")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    made.seed()
    return made


def codes(instance: Instance) -> list[str]:
    found = collect(Instance.open(instance.path)).findings
    return [finding.code for finding in found if finding.code.startswith("COMPARE")]


def spoil(pair: Pair) -> None:
    """A row of the secondary is changed past the guards."""
    region = apsw.Connection(str(pair.secondary.regions[0].path))
    region.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    region.execute("UPDATE account SET owner = 'another'")
    region.close()


def test_it_says_when_with_whom_and_what(instance: Instance) -> None:
    assert look_at_compared(instance.path) == Compared()
    note_compared(instance, "west", 7, ())
    note_compared(instance, "north", 8, ["main.t"] * 30)
    found = look_at_compared(instance.path).found
    assert [(name, one.seqno, one.is_equal, len(one.differs)) for name, one in found.items()] == [
        ("west", 7, True, 0),
        ("north", 8, False, 20),
    ]
    note_compared(instance, "west", 9, ())
    assert list(look_at_compared(instance.path).found) == ["north", "west"]
    forget_compared(instance, "north")
    forget_compared(instance, "nobody")
    assert list(look_at_compared(instance.path).found) == ["west"]
    assert os.stat(compared_path(instance.path)).st_mode & 0o777 == 0o600
    with pytest.raises(UsageError):
        note_compared(instance, "../west", 7, ())


def test_it_has_an_end(instance: Instance) -> None:
    for number in range(PARTNERS_MAX + 3):
        note_compared(instance, f"site{number}", 7, ())
    found = look_at_compared(instance.path).found
    assert list(found) == [f"site{number}" for number in range(3, PARTNERS_MAX + 3)]


ONE = {"seqno": 1, "wall_ns": 1, "equal": True, "differs": []}
SENSELESS = [
    *({"../x": ONE}, {"x": {**ONE, "differs": ["t"]}}, {"x": {**ONE, "seqno": -1}}, {"x": 3}, 3),
]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "null", "[]", '{"format": 2}'),
        *(json.dumps({"format": 1, "seeded_wall_ns": 0, "with": one}) for one in SENSELESS),
    ],
)
def test_what_makes_no_sense_is_never_compared(instance: Instance, text: str) -> None:
    compared_path(instance.path).write_text(text)
    compared_path(instance.path).chmod(0o600)
    assert look_at_compared(instance.path) == Compared()
    note_compared(instance, "west", 7, ())
    assert list(look_at_compared(instance.path).found) == ["west"]


def test_a_compare_on_one_host_is_noted_in_both(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    assert codes(pair.secondary) == codes(pair.primary) == []
    last = pair.write(1)
    pair.catch_up()
    words = ["-i", str(pair.primary.path), "compare", "--with", str(pair.secondary.path)]
    assert main.run(words) == 0
    assert look_at_compared(pair.primary.path).found["west"].seqno == last
    assert look_at_compared(pair.secondary.path).found["east"].is_equal
    assert codes(pair.secondary) == codes(pair.primary) == ["COMPARED"]
    spoil(pair)
    assert main.run(words) == 1
    capfd.readouterr()
    assert codes(pair.secondary) == codes(pair.primary) == ["COMPARED_DIFFERENT"]
    assert look_at_compared(pair.secondary.path).found["east"].differs == ("main.account",)
    assert main.run(["-i", str(pair.secondary.path), "--json", "status"]) == 1
    told = json.loads(capfd.readouterr().out)["compared"]
    assert [(one["other"], one["is_equal"], one["differs"]) for one in told] == [("east", False, ["main.account"])]


def test_a_digest_of_another_host_counts_too(
    pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for instance in (pair.primary, pair.secondary):
        assert main.run(["-i", str(instance.path), "--json", "digest"]) == 0
        files[instance.name] = tmp_path / f"{instance.name}.json"
        files[instance.name].write_text(capfd.readouterr().out)
    assert main.run(["-i", str(pair.secondary.path), "compare", "--with-digest", str(files["east"])]) == 0
    assert (codes(pair.secondary), codes(pair.primary)) == (["COMPARED"], [])
    two = ["compare", "--with-digest", str(files["east"]), "--with-digest", str(files["west"])]
    assert main.run(two) == 0  # for nobody
    assert codes(pair.primary) == []
    assert main.run(["-i", str(pair.primary.path), *two]) == 0
    assert list(look_at_compared(pair.primary.path).found) == ["west"]
    other = Instance.create(tmp_path / "elsewhere", role="primary", name="east")
    monkeypatch.setenv("REPLICATE_INSTANCE", str(other.path))
    assert main.run(two) == 0
    assert look_at_compared(other.path) == Compared()


def test_a_compare_that_does_not_come_to_its_end_is_not_noted(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "-i",
        str(pair.primary.path),
        "compare",
        "--with",
        str(pair.secondary.path),
        "--at",
        "9999",
        "--timeout",
        "0.1",
    ]
    assert main.run(words) == 75
    assert "was not there" in capfd.readouterr().err
    assert look_at_compared(pair.primary.path) == Compared()


def test_a_compare_with_an_instance_of_another_host_says_how(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-i", str(pair.primary.path), "compare", "--with", "far"]) == 69
    said = capfd.readouterr().err
    assert "Where it is on another host, there: replicate -i far --json digest >FILE, carry it here, and" in said
    assert f"replicate -i {pair.primary.path} compare --with-digest FILE" in said
    assert "instance create" not in said


def test_time_passes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    note_compared(pair.secondary, "east", 7, ())
    now = module.time.time_ns()
    monkeypatch.setattr("replicate.status.collect.time.time_ns", lambda: now + 14 * DAY_NS)
    assert codes(pair.secondary) == ["COMPARED"]
    monkeypatch.setattr("replicate.status.collect.time.time_ns", lambda: now + 16 * DAY_NS)
    assert codes(pair.secondary) == ["COMPARE_DUE"]
    assert main.run(["-i", str(pair.secondary.path), "config", "set", "status.compared_warn_days", "17"]) == 0
    assert codes(pair.secondary) == ["COMPARED"]


def test_a_seed_begins_the_time_again_and_forgets_what_was_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    note_compared(pair.secondary, "east", 7, ["main.account"])
    now = module.time.time_ns()
    monkeypatch.setattr(module.time, "time_ns", lambda: now + 20 * DAY_NS)
    note_seeded(pair.secondary)
    monkeypatch.setattr(module.time, "time_ns", lambda: now + 30 * DAY_NS)
    assert codes(pair.secondary) == []
    monkeypatch.setattr(module.time, "time_ns", lambda: now + 36 * DAY_NS)
    assert codes(pair.secondary) == ["COMPARE_DUE"]


def test_the_seed_notes_it(pair: Pair) -> None:
    noted = look_at_compared(pair.secondary.path)
    assert (noted.found, noted.seeded_wall_ns > pair.secondary.content.created_wall_ns) == ({}, True)


def test_a_new_seed_makes_what_the_primary_knew_void_as_well(pair: Pair) -> None:
    for other in ("west", "north"):
        note_compared(pair.primary, other, 7, ["main.account"])
    note_compared(pair.secondary, "east", 7, ["main.account"])
    pair.seed(restart=True)
    assert list(look_at_compared(pair.primary.path).found) == ["north"]
    assert look_at_compared(pair.secondary.path).found == {}
    assert codes(pair.primary) == ["COMPARED_DIFFERENT"]


def test_a_peer_that_is_removed_is_forgotten(pair: Pair) -> None:
    note_compared(pair.primary, "west", 7, ["main.account"])
    assert main.run(["-i", str(pair.primary.path), "peer", "remove", "west"]) == 0
    assert look_at_compared(pair.primary.path).found == {}
