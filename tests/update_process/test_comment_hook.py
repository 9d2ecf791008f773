"""The comment hook: told after the commit, in order, at least once; what it does holds up nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from replicate.errors import ConfigurationError
from replicate.instance.instance import Instance
from tests.harness.pair import Pair
from update_process.comment_hook import STATE, CommentHook, load_hook


def say(pair: Pair, *texts: str) -> None:
    with closing(pair.connect()) as connection:
        for text in texts:
            connection.log_comment(text)
    pair.catch_up()


def test_each_comment_is_told_once_in_order_and_from_now_on(pair: Pair) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    def hook(text: str, about: dict[str, Any]) -> None:
        said.append((text, about))

    say(pair, "before anybody listened")
    with closing(CommentHook(pair.secondary, hook)) as made:
        assert made.work() == 0
        say(pair, "one", "two")
        assert made.work() == 2
        assert made.work() == 0
    last = pair.last_seqno()
    assert [(text, about["seqno"]) for text, about in said] == [("one", last - 1), ("two", last)]
    assert (said[0][1]["origin"], said[0][1]["place"]) == ("east", 0)
    assert json.loads((pair.secondary.path / STATE).read_text()) == {"last_told_seqno": last}
    say(pair, "while nobody listened")
    with closing(CommentHook(pair.secondary, hook)) as made:
        assert made.work() == 1
    assert said[-1][0] == "while nobody listened"


def test_one_that_was_killed_in_its_call_is_called_again(pair: Pair) -> None:
    said: list[str] = []

    def hook(text: str, about: dict[str, Any]) -> None:
        said.append(text)
        if said == ["one"]:
            raise SystemExit  # as a kill: nothing after the call is done

    with closing(CommentHook(pair.secondary, hook)) as made:
        say(pair, "one")
        with pytest.raises(SystemExit):
            made.work()
    with closing(CommentHook(pair.secondary, hook)) as made:
        assert made.work() == 1
    assert said == ["one", "one"]


def test_one_that_raises_is_logged_and_the_next_comment_comes(pair: Pair, capfd: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []

    def hook(text: str, about: dict[str, Any]) -> None:
        said.append(text)
        raise ValueError("no")

    with closing(CommentHook(pair.secondary, hook)) as made:
        say(pair, "one", "two")
        assert made.work() == 2
    assert said == ["one", "two"]
    told = capfd.readouterr().err
    assert f"the hook failed for a comment of transaction {pair.last_seqno()}:" in told
    assert "ValueError: no" in told


def test_the_module_is_named_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "our_markers.py").write_text("def mark(text, about): pass\nnothing = 5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_hook("our_markers:mark")("x", {}) is None
    for setting, why in (
        ("our_markers", "module:function"),
        ("our_markers:none", "cannot be loaded"),
        ("no_such_module:mark", "cannot be loaded"),
        ("our_markers:nothing", "can be called"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            load_hook(setting)


def test_a_state_that_says_nothing_is_refused(pair: Pair) -> None:
    (pair.secondary.path / STATE).write_text("{}")
    with pytest.raises(ConfigurationError, match="up to where comments were told") as caught:
        CommentHook(Instance.open(pair.secondary.path), print)
    assert str(pair.secondary.path / STATE) in caught.value.where
