"""cli/filtering.py: what is said of a filter whose server does not run. (Orders to servers that do:
tests/receiver_server/test_connection.py, tests/source_server/test_filtering.py.)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replicate.cli.root import root
from replicate.errors import ConfigurationError, NotFoundError
from replicate.instance.instance import Instance


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    made = Instance.create(tmp_path / "east", role="primary")
    made.register_peer("west", "127.0.0.1", 7430)
    monkeypatch.setenv("REPLICATE_INSTANCE", str(made.path))
    return made


def invoke(*words: str) -> Result:
    return CliRunner().invoke(root, [*words], standalone_mode=False)


@pytest.mark.parametrize(("noun", "daemon"), [("receiver", "receiver"), ("source", "source-west")])
def test_a_server_that_does_not_run(instance: Instance, noun: str, daemon: str) -> None:
    assert invoke(noun, "filter", "show").stdout == f"{daemon}: no filter\n"
    result = invoke(noun, "filter", "on")
    assert isinstance(result.exception, ConfigurationError)
    assert f"{daemon} has no filter" in str(result.exception)
    (instance.path / "replicate.toml").write_text(f'[{noun}]\nfilter = "cat -u"\n')
    assert invoke(noun, "filter", "show").stdout == f"{daemon}: not running: cat -u\n"
    told = json.loads(invoke("--json", noun, "filter", "show").stdout)
    assert told == {"daemon": daemon, "filter": "cat -u", "is_on": False, "identity": None, "error": None}
    result = invoke(noun, "filter", "off")
    assert isinstance(result.exception, NotFoundError)
    assert f"{noun} start" in str(result.exception)
