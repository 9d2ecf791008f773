"""A rolling upgrade, all of it: another schema on one site, the roles exchanged, then that schema on the other site.

As `replicate help filters` has it, with the commands' functions and real servers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from replicate import connect
from replicate.admin.region_upgrade import upgrade_region
from replicate.compare.compare import compare
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.roles.change_of_role import become_primary, become_secondary
from tests.harness.filtered import applied
from tests.harness.servers import point, servers
from tests.harness.sites import Sites
from update_process.process import finish_received
from update_process.process import serve as serve_update
from update_process.replay.command import whole_journal

OLD = "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT NOT NULL);"
UPGRADE = """
ALTER TABLE person ADD COLUMN first TEXT NOT NULL DEFAULT '';
ALTER TABLE person ADD COLUMN last TEXT NOT NULL DEFAULT '';
UPDATE person SET first = substr(name, 1, instr(name, ' ') - 1), last = substr(name, instr(name, ' ') + 1);
ALTER TABLE person DROP COLUMN name;
"""


def execute(instance: Instance, *statements: str) -> int:
    """A transaction for each; the last number."""
    connection = connect(instance.path)
    for statement in statements:
        connection.execute(statement)
        connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def upgrade(instance: Instance) -> None:
    upgrade_region(instance, "main", UPGRADE, timeout_s=60, finish=lambda: finish_received(instance, timeout_s=60))


async def stream(
    sites: Sites, *statements: str, receiver: dict[str, object] | None = None, source: dict[str, object] | None = None
) -> None:
    """The primary commits while its stream runs; until the secondary has it."""
    async with servers() as running:
        listens = await running.receiver(sites.secondary, **(receiver or {}))
        update = running.start("update", sites.secondary, serve_update)
        point(sites.primary, sites.secondary.name, listens)
        running.source(sites.primary, sites.secondary.name, **(source or {}))
        run: Callable[[], int] = lambda: execute(sites.primary, *statements)  # noqa: E731
        await applied(update, await trio.to_thread.run_sync(run))


@pytest.mark.trio
async def test_one_site_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    sites = Sites.create(tmp_path, OLD)
    sites.add_peers()
    execute(sites.primary, "INSERT INTO person(name) VALUES ('Ada Lovelace'), ('Grace Hopper')")
    sites.seed()
    east, west = sites.primary, sites.secondary

    upgrade(west)
    await stream(
        sites,
        "INSERT INTO person(name) VALUES ('Edsger Dijkstra')",
        "UPDATE person SET name = 'Ada King' WHERE id = 1",
        receiver={"receiver__filter": "tests.harness.filters:two_names"},
    )
    assert sites.rows("person") == [
        (1, 1, "Ada", "King"), (2, 2, "Grace", "Hopper"), (3, 3, "Edsger", "Dijkstra")
    ]  # fmt: skip

    assert Chain(west.journal_directory).whole_end().first_seqnos() == []
    seqno = become_secondary(east)
    assert become_primary(west) == seqno
    assert whole_journal(west.path).first_seqnos() == [seqno + 1]  # an archive of it begins here
    sites.exchange()
    (sites.primary.path / "there.sql").write_text(OLD)
    await stream(
        sites,
        "INSERT INTO person(first, last) VALUES ('Barbara', 'Liskov')",
        "DELETE FROM person WHERE id = 2",
        source={"source__filter": "tests.harness.filters:one_name", "source__filter_schema": "there.sql"},
    )
    assert sites.rows("person") == [(1, 1, "Ada King"), (3, 3, "Edsger Dijkstra"), (4, 4, "Barbara Liskov")]

    upgrade(sites.secondary)
    await stream(
        sites, "UPDATE person SET last = 'Lovelace' WHERE id = 1", "INSERT INTO person(first) VALUES ('Dorothy')"
    )
    equal = await trio.to_thread.run_sync(lambda: compare(sites.primary, sites.secondary, timeout_s=60))
    assert equal.equal
    assert sites.rows("person")[0] == (1, 1, "Ada", "Lovelace")
    assert len(sites.rows("person")) == 4
