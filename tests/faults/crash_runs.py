"""More short runs, of whose legal disk states crash_states.py recovers from: a first instance, apply, redo, regions
attached, a hole, seeds, changes of role (role_runs.py).

    python -m tests.faults.crash_runs NAME ROOT OUTSIDE         does such a run; crash_states.py records and judges it

A run's files lie below ROOT; what no crash may touch (the primary of an apply, what is known of it) below OUTSIDE.
Guarantees: `judge` ends only when what had been told is there, all regions and the journal agree, and the work goes on
to its end from there. Leaves to others: what a disk may do, and which states there are.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import replicate
from replicate.admin.regions import add_region
from replicate.audit.verify import verify_journal
from replicate.door.recovery.opening import close_door, is_seeded, make_chain
from replicate.door.secondary import open_apply_session
from replicate.errors import AlreadyExistsError
from replicate.instance.instance import FILE_NAME, Instance
from replicate.journal.reader import ChainReader
from replicate.journal.record import FrameBatch, decode
from replicate.journal.walk import walk
from replicate.model.transaction import RowChange, Transaction
from replicate.pool import control as word
from replicate.region.sqlite.open import open_region
from replicate.transfer.seed.direct import seed
from tests.faults import role_runs
from tests.faults.rounds import two_regions_with_a_hole
from tests.harness import applying, instances
from tests.harness.regions import make_database
from tests.harness.telling import tell

REGIONS: Final = ("main", "two")
ROWS: Final = {
    "create": 3, "apply": 6, "redo": 3, "redo apply": 6, "several": 9, "several off": 9, "hole": 2,
    "seed": 3, "seed again": 3, **dict.fromkeys(role_runs.NAMES, 3),
}  # fmt: skip
REDONE: Final = {1, 2, 3, 10, 11, 12, *range(100, 140)}
"""What the journal of `redo` holds for region two; main has the large one (from 100 on) in another size."""
LARGE: Final = (100, 24)
"""First row, and how many: of the large transaction that is applied."""
NEW: Final = "new/alpha"
"""Where `create` makes an instance: below a directory that is made, too."""
APPLIED: Final = ("apply", "redo apply")
"""Of a secondary: the primary is outside, where no crash touches it."""
Told = list[Any]
"""What the run had printed when the power went, a value a line."""


# Before the run: everything here is on the disk.


def prepare(name: str, root: Path, outside: Path) -> None:
    """Both instances, as far as the run needs them."""
    if name in role_runs.NAMES:
        role_runs.prepare(name, root, outside)
        return
    if name == "create":
        make_database(root / "app.db", instances.SCRIPT)
        return
    if name == "hole":
        two_regions_with_a_hole(root)
        for aside in ("shm", "aside", "in-region"):
            shutil.move(root / aside, outside / f"hole-{aside}")
        return
    policy = "off" if name == "several off" else "durable"
    place = outside if name in APPLIED else root
    primary = instances.make_primary(place / "alpha", regions=REGIONS, durability=policy, segment_bytes=1 << 20)
    _insert(primary, range(1, 4))
    if name == "redo":
        _fall_behind(primary, lambda: _more(primary), outside)
    elif name in APPLIED:
        secondary = instances.make_secondary(root / "beta", primary, durability=policy, segment_bytes=1 << 20)
        with instances.session_of(primary) as session:  # so that its segment is nearly full when the run begins
            for row_id in range(40, 43):
                instances.insert(session, row_id, "f" * 330_000)
        _apply_all(secondary, primary)
        if name == "redo apply":
            _insert(primary, range(4, 6))
            _fall_behind(secondary, lambda: _apply_all(secondary, primary), outside)
        _fill(primary)
        with instances.door_of(primary) as door:
            last = int(door.words[word.LAST_SEQNO])
        with instances.door_of(primary) as door:
            tables = {d.table_id: d.region for d in door.catalogue_now().definitions.values()}
        known = [
            [seqno, [(tables[table_id], row_id) for table_id, row_id in _inserted(one)]]
            for seqno, one in instances.read_journal(primary).transactions.items()
        ]
        (outside / "known.json").write_text(json.dumps({"last": last, "small": known}))
    elif name.startswith("seed"):
        network = primary.content.network
        secondary = Instance.create(root / "beta", role="secondary", name="beta", network=network)
        instances.configure(root / "beta", pool_bytes=1024 * 1024, segment_bytes=1 << 20)
        primary.register_peer("beta", "127.0.0.1", 7430)
        primary.reload()
        if name == "seed again":
            seed(primary, secondary)
            _insert(primary, range(10, 14))


def _fall_behind(instance: Instance, work: Callable[[], None], outside: Path) -> None:
    """Have the regions lose what `work` commits; the journal holds all of it."""
    for region in REGIONS:
        instances.save_region(instance.region(region).path, outside / "aside")
    work()
    for region in REGIONS:
        path = instance.region(region).path
        whole = instances.rows(path)
        instances.restore_region(path, outside / "aside")
        assert instances.rows(path).keys() < whole.keys(), f"region {region} has lost nothing"
    instances.lose_pool(instance)


def _more(primary: Instance) -> None:
    """Small ones of either region, a table with a row of each, a large one."""
    with instances.session_of(primary) as main, instances.session_of(primary, "two") as two:
        for row_id in range(10, 13):
            instances.insert(main, row_id)
            instances.insert(two, row_id, "z" * 3000)
        instances.change_schema(two, "CREATE TABLE later(id INTEGER PRIMARY KEY, v)", "later")
        two.commit(instances.begin_large(two, 100, 40))
        main.commit(instances.begin_large(main, 100, 20))


def _apply_all(secondary: Instance, primary: Instance) -> None:
    with instances.door_of(primary) as door:
        last = int(door.words[word.LAST_SEQNO])
    apply_rest(Instance.open(secondary.path), primary, lambda _: None, last)


def _inserted(transaction: Transaction) -> list[tuple[int, int]]:
    """The rows of a transaction whose frame has them: table and key."""
    changes = [change for change in transaction.content if isinstance(change, RowChange)]
    return [(change.table_id, int(change.after[0])) for change in changes if change.after is not None]


def _insert(primary: Instance, row_ids: range) -> None:
    with instances.session_of(primary) as main, instances.session_of(primary, "two") as two:
        for row_id in row_ids:
            instances.insert(main, row_id)
            instances.insert(two, row_id, "z" * 3000)


def _fill(primary: Instance) -> None:
    """A backlog: small ones of either region, a large one, and enough for a switch of segments."""
    _insert(primary, range(10, 10 + ROWS["apply"]))
    with instances.session_of(primary) as main:
        main.commit(instances.begin_large(main, LARGE[0], LARGE[1]))
        for row_id in range(20, 25):
            instances.insert(main, row_id, "w" * 12_000)
    _insert(primary, range(30, 33))


# The run.


def run(name: str, root: Path, outside: Path, tell: Callable[[object], None]) -> None:
    """Do it; `tell` is called with what binds from then on."""
    if name in role_runs.NAMES:
        role_runs.run(name, root, outside, tell)
    elif name in APPLIED:
        apply_rest(Instance.open(root / "beta"), Instance.open(outside / "alpha"), tell, _last(outside))
    elif name == "create":
        instance = Instance.create(root / NEW, role="primary", name="alpha")
        tell("made")
        add_region(instance, root / "app.db", name="main")
        tell("added")
        with instances.session_of(Instance.open(instance.path)) as session:
            for row_id in range(ROWS[name]):
                tell(instances.insert(session, row_id))
    elif name == "redo":
        instance = Instance.open(root / "alpha")
        with instances.session_of(instance) as main, instances.session_of(instance, "two") as two:
            tell(0)
            for row_id in range(500, 500 + ROWS[name]):
                instances.insert(main, row_id)
                instances.insert(two, row_id, "z" * 3000)
                tell(row_id)
    elif name.startswith("several"):
        _several(root, tell)
    elif name == "hole":
        with instances.door_of(Instance.open(root / "alpha")):
            tell("recovered")
        _insert(Instance.open(root / "alpha"), range(500, 500 + ROWS[name]))
    else:
        seed(Instance.open(root / "alpha"), Instance.open(root / "beta"), restart=name == "seed again")
        tell("seeded")


def _last(outside: Path) -> int:
    return int(json.loads((outside / "known.json").read_text())["last"])


def apply_rest(
    secondary: Instance, primary: Instance, tell: Callable[[object], None], last: int, *, max_bytes: int = 4000
) -> None:
    """Apply the primary's journal up to `last`, a few transactions at a time; `tell` the number after each."""
    session = open_apply_session(secondary)
    reader = ChainReader(make_chain(primary), session.position.last_seqno + 1)
    try:
        while (piece := reader.read(max_bytes, last)) is not None:
            if isinstance(piece, FrameBatch):
                applying.apply_batch(session, piece)
            else:
                applying.apply_large(session, piece)
            tell(session.position.last_seqno)
    finally:
        reader.close()
        session.close()
        close_door(session.door)


def _several(root: Path, tell: Callable[[object], None]) -> None:
    with replicate.connect(root / "alpha", isolation_level=None) as connection:
        connection.attach("two")
        for row_id in range(10, 10 + ROWS["several"]):
            connection.execute("BEGIN")
            if row_id % 4 != 1:
                connection.execute("INSERT INTO main.t VALUES (?, ?)", (row_id, "x" * 100))
            if row_id % 4 != 2:
                connection.execute("INSERT INTO two.t VALUES (?, ?)", (row_id, "y" * 5000))
            connection.execute("COMMIT")
            tell(row_id)
    connection.close()


# After the power loss.


def judge(name: str, root: Path, outside: Path, told: Told) -> None:
    """AssertionError or the product's error for a violation. In a process of its own."""
    if name in role_runs.NAMES:
        role_runs.judge(name, root, outside, told)
    elif name in APPLIED:
        _judge_apply(root, outside, told)
    elif name == "create":
        _judge_create(root, told)
    elif name == "redo":
        _judge_redo(root, told)
    elif name.startswith("several"):
        _judge_several(name, root, told)
    elif name == "hole":
        _judge_hole(root, outside)
    else:
        _judge_seed(name, root, told)


def _judge_apply(root: Path, outside: Path, told: Told) -> None:
    secondary, primary = Instance.open(root / "beta"), Instance.open(outside / "alpha")
    with instances.door_of(secondary) as door:
        last = int(door.words[word.LAST_SEQNO])
    assert last >= max(told, default=0), f"{max(told)} was told durable, {last} is there"
    whole = {name: instances.rows(primary.region(name).path) for name in REGIONS}
    there = {name: instances.rows(secondary.region(name).path) for name in REGIONS}
    known = json.loads((outside / "known.json").read_text())
    gone = {(region, row_id) for seqno, rows in known["small"] if seqno > last for region, row_id in rows}
    if last < _seqno_of_large(known):
        gone |= {("main", row_id) for row_id in range(LARGE[0], sum(LARGE))}
    for name in REGIONS:
        assert there[name] == {row_id: value for row_id, value in whole[name].items() if (name, row_id) not in gone}, (
            f"region {name} is not what the primary was at {last}: {sorted(there[name].keys() ^ whole[name].keys())}"
        )
    assert not verify_journal(secondary).findings
    apply_rest(Instance.open(secondary.path), primary, lambda _: None, known["last"], max_bytes=1 << 20)
    assert {name: instances.rows(secondary.region(name).path) for name in REGIONS} == whole


def _judge_create(root: Path, told: Told) -> None:
    """What was told is there. Before it was, the instance may be there, in part, or not at all."""
    if not told and not (root / NEW / FILE_NAME).exists():
        return
    instances.configure(root / NEW, pool_bytes=1024 * 1024)  # a new pool is what a judge spends its time on
    instance = Instance.open(root / NEW)
    if "added" not in told:
        with contextlib.suppress(AlreadyExistsError):  # it was
            add_region(instance, root / "app.db", name="main")
    instance = Instance.open(root / NEW)
    found = instances.check(instance)
    rows = set(found.rows["main"]) if "main" in found.rows else set()
    assert rows == set(range(len(rows))), f"not a prefix: {rows}"
    assert len(rows) >= len(told) - len(["made", "added"]), f"acknowledged and missing: {told}, there: {rows}"
    with instances.session_of(Instance.open(instance.path)) as session:
        instances.insert(session, 900)
    instances.check(Instance.open(instance.path))


def _judge_redo(root: Path, told: Told) -> None:
    """What the journal held is in the regions, whole; of the new rows those that were told, and no others between."""
    instance = Instance.open(root / "alpha")
    found = instances.check(instance)
    new = [(row_id, region) for row_id in range(500, 500 + ROWS["redo"]) for region in REGIONS]
    there = [(row_id, region) for row_id, region in new if row_id in found.rows[region]]
    assert there == new[: len(there)], f"not a prefix: {there}"
    assert len(there) >= 2 * len([one for one in told if one]), f"acknowledged and missing: {told}, there: {there}"
    old = {region: {row_id for row_id in found.rows[region] if row_id < 500} for region in REGIONS}
    assert old == {"main": REDONE - set(range(120, 140)), "two": REDONE}, f"redone: {old}"
    connection = open_region(instance.region("two").path, readonly=True)
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE name = 'later'").fetchall()
    connection.close(True)
    assert tables, "the change of the schema was not redone"
    _insert(Instance.open(instance.path), range(900, 901))
    instances.check(Instance.open(instance.path))


def _seqno_of_large(known: dict[str, Any]) -> int:
    """It has no rows of its own in the journal's frames."""
    return next(int(seqno) for seqno, rows in known["small"] if not rows and int(seqno) > 2 * ROWS["apply"])


def _judge_several(name: str, root: Path, told: Told) -> None:
    instance = Instance.open(root / "alpha")
    found = instances.check(instance)
    main, two = ({row_id for row_id in found.rows[region] if row_id >= 10} for region in REGIONS)
    for row_id in main | two:
        assert (row_id in main, row_id in two) == (row_id % 4 != 1, row_id % 4 != 2), f"{row_id} is there in part"
    assert sorted(main | two) == list(range(10, 10 + len(main | two))), f"not a prefix: {sorted(main | two)}"
    if name == "several":
        assert set(told) <= main | two, f"acknowledged and missing: {set(told) - (main | two)}"
    _insert(Instance.open(instance.path), range(900, 901))
    instances.check(Instance.open(instance.path))


def _judge_hole(root: Path, outside: Path) -> None:
    """What lies before the hole is there, what lay after it is in a file of what was rolled back, and there once. New
    rows are a prefix (`off`), by their numbers: one that is missing may be in such a file."""
    instance = Instance.open(root / "alpha")
    found = instances.check(instance)
    main, two = (set(found.rows[region]) for region in REGIONS)
    new = range(500, 500 + ROWS["hole"])
    assert {1, 2, 3} <= main <= {1, 2, 3, *new}, f"in main: {sorted(main)}"
    assert {10} <= two <= {10, *new}, f"in two: {sorted(two)}"
    order = [(region, row_id) for row_id in new for region in REGIONS]
    there = [(region, row_id) for region, row_id in order if row_id in found.rows[region]]
    assert there == order[: len(there)], f"not a prefix: {there}"
    kept = Counter(
        row_id for path in instance.conflict_directory.glob("rolled-back-*.frames") for row_id in _kept(path)
    )
    gone = set(json.loads((outside / "hole-in-region").read_text())) - {1, 2, 3}
    old = {row_id: count for row_id, count in kept.items() if row_id not in new}
    assert old == dict.fromkeys(gone, 1), f"rolled back: {sorted(gone)}, kept: {kept}"
    _insert(Instance.open(instance.path), range(900, 901))
    instances.check(Instance.open(instance.path))


def _kept(path: Path) -> list[int]:
    """The rows in a file of what was rolled back."""
    data = path.read_bytes()
    frames = [data[offset : offset + head.frame_bytes] for offset, head in walk(data)]
    return [row_id for frame in frames for _, row_id in _inserted(decode(frame))]


def _judge_seed(name: str, root: Path, told: Told) -> None:
    primary, secondary = Instance.open(root / "alpha"), Instance.open(root / "beta")
    if not is_seeded(secondary):
        assert not told, "the seed had ended well, and is not there"
        seed(primary, secondary, restart=True)
    secondary = Instance.open(secondary.path)
    _insert(Instance.open(primary.path), range(900, 902))
    with instances.door_of(primary) as door:
        last = int(door.words[word.LAST_SEQNO])
    apply_rest(secondary, Instance.open(primary.path), lambda _: None, last, max_bytes=1 << 20)
    for region in REGIONS:
        here, there = (instances.rows(one.region(region).path) for one in (primary, Instance.open(secondary.path)))
        assert here == there, f"region {region}: {sorted(here.keys() ^ there.keys())}"
    assert not verify_journal(Instance.open(secondary.path)).findings


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), tell)
