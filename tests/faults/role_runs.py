"""Short runs of role changes, of whose legal disk states crash_states.py recovers: demote, promote, rollback, and lost
transactions that are applied.

Guarantees: `judge` ends only when what was told is there, the command given again ends as if nothing had happened, and
the site goes on from there in its new role. A rollback is judged by its file, too: what was taken back stands there.
Leaves to others: what a disk may do, and which states there are (crash_states.py), and how the runs are started
(crash_runs.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from replicate.audit.verify import verify_journal
from replicate.instance.instance import Instance
from replicate.lost.apply import apply_lost
from replicate.pool import control as word
from replicate.roles.change_of_role import become_primary, become_secondary
from replicate.roles.rollback import rollback
from tests.harness import instances
from tests.harness.pair import Pair

REGIONS: Final = ("main", "two")
LOST: Final = range(50, 54)
"""Rows that only the old primary had."""
NEW: Final = range(500, 503)
NAMES: Final = ("demote", "promote", "rollback", "lost apply")
Tell = Callable[[object], None]


def insert(instance: Instance, row_ids: range, tell: Tell | None = None) -> None:
    """Rows in both regions, told one by one."""
    opened = Instance.open(instance.path)
    with instances.session_of(opened) as main, instances.session_of(opened, "two") as two:
        for row_id in row_ids:
            instances.insert(main, row_id)
            instances.insert(two, row_id, "z" * 3000)
            if tell is not None:
                tell(row_id)


def rows_of(instance: Instance) -> dict[str, dict[int, Any]]:
    opened = Instance.open(instance.path)
    return {name: instances.rows(opened.region(name).path) for name in REGIONS}


def last_of(instance: Instance) -> int:
    with instances.door_of(Instance.open(instance.path)) as door:
        return int(door.words[word.LAST_SEQNO])


def follow(secondary: Instance, primary: Instance) -> None:
    """The secondary applies all that the primary has."""
    Pair(primary.path.parent, Instance.open(primary.path), Instance.open(secondary.path)).catch_up()


def lost_file(root: Path) -> Path:
    (found,) = root.glob("alpha-lost-*.jsonl")
    return found


# Before the run, and the run.


def prepare(name: str, root: Path, outside: Path) -> None:
    """Alpha was primary first, beta follows it. Of a demotion and a rollback alpha is on the disk that fails, else
    beta."""
    settings: dict[str, object] = {"durability": "durable", "segment_bytes": 1 << 20}
    old_place, new_place = (root, outside) if name in ("demote", "rollback") else (outside, root)
    old = instances.make_primary(old_place / "alpha", regions=REGIONS, **settings)
    insert(old, range(1, 4))
    if name == "demote":
        return
    new = instances.make_secondary(new_place / "beta", old, **settings)
    insert(old, range(10, 13))
    follow(new, old)
    if name == "promote":
        return
    (outside / "common.json").write_text(json.dumps([last_of(new), sorted(rows_of(new)["main"])]))
    insert(old, LOST)
    become_primary(Instance.open(new.path))
    insert(new, range(70, 72))
    become_secondary(Instance.open(old.path))
    if name == "lost apply":
        rollback(Instance.open(old.path), common_of(outside))
        source = lost_file(outside)
        (root / source.name).write_bytes(source.read_bytes())


def run(name: str, root: Path, outside: Path, tell: Tell) -> None:
    """Do it; `tell` is called with what binds from then on."""
    if name == "demote":
        become_secondary(Instance.open(root / "alpha"))
        tell("secondary")
    elif name == "promote":
        become_primary(Instance.open(root / "beta"))
        tell("primary")
        insert(Instance.open(root / "beta"), NEW, tell)
    elif name == "rollback":
        rollback(Instance.open(root / "alpha"), common_of(outside))
        tell("back")
    else:
        apply_lost(Instance.open(root / "beta"), lost_file(root), timeout_s=10)
        tell("applied")


def common_of(outside: Path) -> int:
    return int(json.loads((outside / "common.json").read_text())[0])


# After the power loss.


def judge(name: str, root: Path, outside: Path, told: list[Any]) -> None:
    """AssertionError or the product's error for a violation."""
    {"demote": _demoted, "promote": _promoted, "rollback": _rolled_back, "lost apply": _applied}[name](
        root, outside, told
    )


def _demoted(root: Path, _outside: Path, told: list[Any]) -> None:
    alpha = Instance.open(root / "alpha")
    assert not told or alpha.role == "secondary", "it was told, and is primary again"
    become_secondary(alpha)
    assert sorted(rows_of(alpha)["main"]) == sorted(rows_of(alpha)["two"]) == [1, 2, 3]
    assert not verify_journal(Instance.open(alpha.path)).findings
    become_primary(Instance.open(alpha.path))
    insert(alpha, range(900, 902))
    instances.check(alpha)


def _promoted(root: Path, _outside: Path, told: list[Any]) -> None:
    beta = Instance.open(root / "beta")
    assert not told or beta.role == "primary", "it was told, and is secondary again"
    become_primary(beta)
    there = rows_of(beta)
    order = [(row_id, region) for row_id in NEW for region in REGIONS]
    new = [(row_id, region) for row_id, region in order if row_id in there[region]]
    assert new == order[: len(new)], f"not a prefix: {new}"
    assert len(new) >= 2 * len([one for one in told if one != "primary"]), f"acknowledged and missing: {told}, {new}"
    for region in REGIONS:
        assert [row_id for row_id in sorted(there[region]) if row_id < min(NEW)] == [1, 2, 3, 10, 11, 12]
    insert(beta, range(900, 902))
    assert not verify_journal(Instance.open(beta.path)).findings


def _rolled_back(root: Path, outside: Path, told: list[Any]) -> None:
    """Given again it ends; the rows are those of the common point, and what is gone stands in one file."""
    alpha = Instance.open(root / "alpha")
    common, kept = json.loads((outside / "common.json").read_text())
    if told:
        assert sorted(rows_of(alpha)["main"]) == kept, "it was told that it is back"
    rollback(alpha, common)
    assert sorted(rows_of(alpha)["main"]) == sorted(rows_of(alpha)["two"]) == kept
    lines = [json.loads(line) for line in lost_file(root).read_text().splitlines()]
    rows = {change["after"][0] for line in lines[1:-1] for change in line.get("changes", ()) if change.get("after")}
    assert rows == set(LOST), f"taken back: {sorted(LOST)}, in the file: {sorted(rows)}"
    follow(alpha, Instance.open(outside / "beta"))
    assert rows_of(alpha) == rows_of(Instance.open(outside / "beta"))
    assert not verify_journal(Instance.open(alpha.path)).findings


def _applied(root: Path, _outside: Path, told: list[Any]) -> None:
    """Each once: a row that was applied twice would be a conflict, which stops."""
    beta = Instance.open(root / "beta")
    if told:
        assert set(LOST) <= set(rows_of(beta)["main"]), "it was told that they are applied"
    made = apply_lost(beta, lost_file(root), timeout_s=10)
    assert not made.conflicts
    assert not made.left
    for region in REGIONS:
        assert sorted(rows_of(beta)[region]) == [1, 2, 3, 10, 11, 12, *LOST, 70, 71]
    assert not verify_journal(Instance.open(beta.path)).findings
