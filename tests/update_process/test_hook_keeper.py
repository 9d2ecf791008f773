"""The process of the hook beside a real Update Process: told while it runs, started again, gone with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from replicate.daemon.daemon import DaemonContext
from replicate.settings.load import load
from tests.harness.pair import Pair
from tests.harness.waiting import wait_until_async
from update_process import hook_keeper
from update_process.comment_hook import STATE
from update_process.process import serve

HOOK = """
import os, pathlib
HERE = pathlib.Path(__file__).parent

def mark(text, about):
    with open(HERE / "told", "a") as file:
        file.write(f"{text} {os.getpid()}\\n")
    if text == "die":
        os._exit(3)
"""


def lines(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    return [(text, int(pid)) for text, pid in (line.split() for line in path.read_text().splitlines())]


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.trio
async def test_comments_are_told_and_a_hook_that_dies_stops_nothing(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_keeper, "FIRST_PAUSE_S", 0.01)
    (tmp_path / "our_markers.py").write_text(HOOK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = pair.secondary.path / "replicate.toml"
    settings.write_text(settings.read_text() + '\n[update]\ncomment_hook = "our_markers:mark"\n')
    pair.secondary.reload()
    context = DaemonContext("update", pair.secondary.path, config=load(settings))
    state = pair.secondary.path / STATE
    with trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            await wait_until_async(lambda: context.state == "serving")
            await wait_until_async(state.exists)  # from here on it is told of everything
            connection = pair.connect()
            for text in ("one", "die", "after"):
                connection.log_comment(text)
            connection.execute("INSERT INTO account (owner) VALUES ('o')")
            connection.commit()
            connection.close()
            with pair.receive_pool() as pool:
                pair.deliver(pool)
                # It dies at each call for "die", is called again for that (at least once), and applying goes on.
                await wait_until_async(lambda: pool.applied_seqno == pair.last_seqno())
                await wait_until_async(lambda: [text for text, _ in lines(tmp_path / "told")].count("die") >= 2)
                (tmp_path / "our_markers.py").write_text(HOOK.replace("os._exit(3)", "pass"))
                await wait_until_async(lambda: any(text == "after" for text, _ in lines(tmp_path / "told")))
                context.stop_requested.set()
    told = [text for text, _ in lines(tmp_path / "told")]
    assert [text for at, text in enumerate(told) if text not in told[:at]] == ["one", "die", "after"]
    assert told.count("one") == 1
    assert told.count("after") == 1
    await wait_until_async(lambda: not any(lives(pid) for _, pid in lines(tmp_path / "told")))
    assert json.loads(state.read_text())["last_told_seqno"] >= pair.last_seqno() - 1


@pytest.mark.trio
async def test_what_is_applied_before_the_function_can_be_loaded_is_told(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_keeper, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = pair.secondary.path / "replicate.toml"
    settings.write_text(settings.read_text() + '\n[update]\ncomment_hook = "late_markers:mark"\n')
    pair.secondary.reload()
    context = DaemonContext("update", pair.secondary.path, config=load(settings))
    with trio.fail_after(200):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, context)
            await wait_until_async(lambda: context.state == "serving")
            connection = pair.connect()
            connection.log_comment("early")
            connection.close()
            with pair.receive_pool() as pool:
                pair.deliver(pool)
                await wait_until_async(lambda: pool.applied_seqno == pair.last_seqno())
                assert not lines(tmp_path / "told")
                (tmp_path / "late_markers.py").write_text(HOOK)
                await wait_until_async(lambda: bool(lines(tmp_path / "told")))
                context.stop_requested.set()
    assert [text for text, _ in lines(tmp_path / "told")] == ["early"]
