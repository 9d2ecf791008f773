"""A supplier whose backup came back, with its daemons: it takes writes again by itself, also after a second time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicate.door.secondary import ApplySession
from replicate.instance.instance import Instance
from replicate.roles.restored_supplier import turn_back
from replicate.roles.retiring import retire
from tests.harness.servers import point, servers
from tests.harness.suppliers import Suppliers
from tests.harness.waiting import wait_until_async
from tests.replicate.roles.test_restored_supplier import put_back, saved
from update_process.process import serve as serve_update

pytestmark = pytest.mark.trio


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Suppliers.create(tmp_path)
    made.write("b", 2)
    made.level()
    return made


async def test_one_that_is_retired_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where it calls, and here it never does."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    three = await trio.to_thread.run_sync(lambda: Suppliers.create(tmp_path, 3))
    for name in ("a", "c"):
        three.by["b"].register_peer(name, "127.0.0.1", 7430)
    copy = saved(three, "b")
    await trio.to_thread.run_sync(lambda: (three.write("b", 2), three.level()))
    assert not (await trio.to_thread.run_sync(lambda: retire(three.by["a"], "c", timeout_s=0))).is_retired
    await trio.to_thread.run_sync(lambda: put_back(three, "b", copy, keeps_inode=False))
    assert {peer.name for peer in three.by["b"].peers} == {"a", "c"}
    assert await gets_back(three, 4) == []


async def gets_back(two: Suppliers, incarnation: int) -> list[str]:
    """Until it takes writes in that incarnation; the errors that its Update Process logs."""
    site = two.by["b"]

    def takes_writes() -> bool:
        content = Instance.open(site.path).content
        return content.incarnation == incarnation and not content.is_restoring

    async with servers() as running:
        receiver = await running.receiver(site)
        update = running.start("update", site, serve_update)
        point(two.by["a"], "b", receiver)
        running.source(two.by["a"], "b")
        await wait_until_async(takes_writes, what="it takes writes")
    site.reload()
    return [fields["code"] for level, _, fields in update.log.lines if level == "error"]


@pytest.mark.slow
async def test_the_same_backup_comes_back_again_and_again(two: Suppliers) -> None:
    """It begins under a number that it has written under before, and takes the next, until nobody knows it."""
    copy = saved(two, "b")
    for at in range(3):
        await trio.to_thread.run_sync(lambda: put_back(two, "b", copy, keeps_inode=False))
        Instance.open(two.by["b"].path)
        with pytest.raises(Exception, match="was restored from an older state, and waits"):
            await trio.to_thread.run_sync(lambda: two.write("b"))
        assert await gets_back(two, 4 + at) == []  # its source knows, before anything comes
        await trio.to_thread.run_sync(lambda: (two.write("b", 3), two.level()))
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 11


async def test_its_daemons_are_the_first_to_open_it(two: Suppliers) -> None:
    """Its Receiver Server says who it is before anybody has found out that it was restored: under the incarnation of
    before, of which a source leaves out all. It says it again."""
    copy = saved(two, "b")
    await trio.to_thread.run_sync(lambda: (two.write("b", 3), two.level()))
    await trio.to_thread.run_sync(lambda: put_back(two, "b", copy, keeps_inode=False))
    assert await gets_back(two, 4) == []
    await trio.to_thread.run_sync(lambda: (two.write("b", 2), two.level()))
    two.assert_converged()
    assert len(two.rows("a")["tb"]) == 7


async def test_its_receiver_server_finds_it_out_while_its_update_process_works(
    two: Suppliers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pools are retired before what was received is appended: the Update Process goes on with new ones."""
    found_out, begin = list[bool](), ApplySession.begin

    def begin_late(self: ApplySession) -> None:
        if not found_out and self.door.instance.name == "b":
            found_out.append(turn_back(Instance.open(two.by["b"].path)))
        begin(self)

    monkeypatch.setattr(ApplySession, "begin", begin_late)
    await trio.to_thread.run_sync(lambda: two.write("a", 3))
    incarnation = two.by["b"].content.incarnation
    assert await gets_back(two, incarnation + 1) == []
    assert found_out == [True]
    await trio.to_thread.run_sync(lambda: (two.write("b", 2), two.level()))
    two.assert_converged()
