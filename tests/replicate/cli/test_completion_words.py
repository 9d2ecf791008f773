"""What a shell completes, and that it is quick, silent and never wrong about an instance that is broken."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from replicate.cli import COMPLETION, main, root
from replicate.errors import ERRORS
from replicate.instance.instance import Instance
from replicate.model.findings import CODES
from tests.harness.instances import insert, make_primary, session_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Instances east and eastern (with peers west and north, and the region main), and a directory that is none."""
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    made = Instance.create("east", role="primary")
    for name in ("west", "north"):
        made.register_peer(name, "127.0.0.1", 7430)
    made.register_region("main", bytes(16), tmp_path / "shop.db")
    Instance.create("eastern", role="secondary", network=made.content.network)
    (tmp_path / "else").mkdir()
    return tmp_path


def completed(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bash is offered for the last word of a line."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    monkeypatch.setenv(COMPLETION, "bash_complete")
    main.run([])
    out, err = capsys.readouterr()
    assert err == ""
    return [word.removeprefix("plain,") for word in out.splitlines() if word]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("replicate -i ", ["east", "eastern"]),
        ("replicate -i eastern instance remove easte", ["eastern"]),
        ("replicate seed --from e", ["east", "eastern"]),
        ("replicate compare --with ", ["east", "eastern"]),
        ("replicate -i ./x", ["dir,./x"]),
        ("replicate -i east peer remove ", ["north", "west"]),
        ("replicate -i east source start --peer w", ["west"]),
        ("replicate seed -i east --for n", ["north"]),
        ("replicate -i east region release ", ["main"]),
        ("replicate region move -i east m", ["main"]),
        ("replicate status --explain JOURNAL_F", ["JOURNAL_FATAL", "JOURNAL_FILLING", "JOURNAL_FULL"]),
        ("replicate update start --set update.metrics", ["update.metrics_listen="]),
        ("replicate config set update.metrics", ["update.metrics_listen"]),
        ("replicate completion ", ["bash", "zsh", "fish"]),
        # Nothing to offer, and no error at the prompt.
        ("replicate -i nowhere peer remove ", []),
        ("replicate peer remove ", []),
        ("replicate -i eastern region release ", []),
        ("replicate promote ", []),
    ],
)
def test_words(
    home: Path, line: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(line, capsys, monkeypatch) == words


def test_tables_are_those_that_the_journal_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    primary = make_primary(tmp_path / "east")
    with session_of(primary) as session:
        insert(session, 1)
    assert completed("replicate -i east journal show --table ", capsys, monkeypatch) == ["t"]
    assert completed("replicate -i east journal show --table x", capsys, monkeypatch) == []
    for segment in primary.journal_directory.glob("*.journal"):
        segment.write_bytes(b"damaged")
    assert completed("replicate -i east journal show --table ", capsys, monkeypatch) == []


def test_the_environment_names_the_instance(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_INSTANCE", "east")
    assert completed("replicate peer remove ", capsys, monkeypatch) == ["north", "west"]
    (home / "east" / "instance.json").write_text("damaged")
    assert completed("replicate peer remove ", capsys, monkeypatch) == []


def test_every_code_can_be_explained(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sorted(completed("replicate status --explain ", capsys, monkeypatch)) == sorted({"all", *CODES, *ERRORS})


def test_all_that_names_an_instance_or_a_peer_is_completed() -> None:
    """A new verb that takes one, or a setting, says so."""

    def parameters(command: click.Command) -> list[click.Parameter]:
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return [*command.params, *(one for child in inner for one in parameters(child))]

    wanted = [one for one in parameters(root.root) if {"-i", "--peer", "--with", "--set", "--explain"} & {*one.opts}]
    assert len(wanted) > 20
    assert [one.opts for one in wanted if one._custom_shell_complete is None] == []


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "#compdef"), ("fish", "complete ")]
)
def test_the_script_of_each_shell(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert word in script
    assert COMPLETION in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_bash_completes(home: Path) -> None:
    """The whole way: the script, the function that it makes, the command that this asks."""
    (home / "replicate").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m replicate.cli.main "$@"\n')
    (home / "replicate").chmod(0o755)
    typed = """
        eval "$(replicate completion bash)"
        COMP_WORDS=(replicate -i east peer remove w) COMP_CWORD=5
        _replicate_completion replicate
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("west\n", "")
