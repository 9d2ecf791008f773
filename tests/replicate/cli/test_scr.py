"""The command: one array, two arrays, and what another host has printed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from replicate.cli.root import root
from replicate.compare.scr import array_of, told
from replicate.errors import JournalIOError, NotFoundError, UsageError
from replicate.instance.instance import Instance
from tests.harness.pair import Pair


@pytest.fixture
def level(pair: Pair) -> Pair:
    pair.write(3)
    pair.catch_up()
    return pair


def test_the_command(level: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def run(instance: Instance, *words: str) -> tuple[int, str]:
        monkeypatch.setenv("REPLICATE_INSTANCE", str(instance.path))
        done = CliRunner().invoke(root, [*words], standalone_mode=False)
        assert done.exception is None, done.exception
        return int(done.return_value or 0), done.stdout

    code, said = run(level.primary, "scr")
    assert (code, said.splitlines()[0]) == (
        0, f"east (primary) at transaction {level.last_seqno()}, its journal from 1 on",
    )  # fmt: skip
    assert re.search(r"^east +1 +DEFAULT +\d+ +\d+$", said, re.MULTILINE)
    file = tmp_path / "west.json"
    file.write_text(run(level.secondary, "--json", "scr")[1])
    level.write(1)
    for words in (("--with", str(level.secondary.path)), ("--with-scr", str(file))):
        code, said = run(level.primary, "scr", *words)
        assert (code, said.splitlines()[-1][:21]) == (0, "west is behind by 1, ")
        assert re.search(r"east \(source\) +west +difference +state\n", said)
    made = json.loads(run(level.primary, "--json", "scr", "--with", str(level.secondary.path))[1])
    assert (made["rows"][0]["state"], made["is_well"]) == ("behind by 1", True)
    file.write_text(json.dumps(told(replace(array_of(level.secondary), seqno=99))))
    code, said = run(level.primary, "scr", "--with-scr", str(file))
    assert (code, "west is ahead, and refused" in said) == (1, True)


def test_wrong_words(level: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_INSTANCE", str(level.primary.path))
    for words, error in (
        (["--with", "x", "--with-scr", "y"], UsageError),
        (["--with", "nowhere"], NotFoundError),
        (["--with-scr", "/nowhere"], JournalIOError),
    ):
        done = CliRunner().invoke(root, ["scr", *words], standalone_mode=False)
        assert isinstance(done.exception, error), (words, done.exception)
