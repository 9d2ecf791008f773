"""The frame of the command line: one line for every error, exit codes, odd terminals, the other package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import replicate
from replicate.cli import main, root
from replicate.cli.common import VerbCommand, emit
from replicate.cli.manual import MANUAL, chapters
from replicate.daemon.control import DaemonFailedError
from replicate.errors import EXIT_CODES, DiskFullError, JournalIOError, ReplicateError

COMMAND = (sys.executable, "-P", "-m", "replicate.cli.main")
ROOT = Path(replicate.__file__).resolve().parent.parent


def command(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "REPLICATE_HOME": str(home), **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A verb `fail` that raises what is put into the list."""
    to_raise: list[BaseException] = []

    @click.command(name="fail")
    def fail() -> None:
        raise to_raise[0]

    monkeypatch.setitem(root.root.commands, "fail", fail)
    return to_raise


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DiskFullError("no space", where="x", do="Make room"), 74, "DISK_FULL: no space [x]. Make room\n"),
        (PermissionError(13, "Permission denied", "f"), 77, "IO: Permission denied [f]\n"),
        (OSError(5, "Input/output error"), 74, "IO: Input/output error\n"),
        (BrokenPipeError(32, "Broken pipe"), 74, "IO: Broken pipe\n"),  # of a socket: nobody reads our output away
        (KeyboardInterrupt(), 130, "INTERRUPTED: stopped by the keyboard\n"),
        (click.Abort(), 130, "INTERRUPTED: stopped by the keyboard\n"),
        (ModuleNotFoundError("x", name="msgpack._cmsgpack"), 69, "PREREQUISITE_MISSING: the Python package msgpack"),
        (
            ModuleNotFoundError("No module named 'replicate.x'", name="replicate.x"),
            70,
            "INTERNAL: unexpected ModuleNot",
        ),
        (ValueError("two\nlines"), 70, "INTERNAL: unexpected ValueError: two lines. Repeat it with --debug"),
        (click.UsageError("Wrong."), 2, "USAGE: Wrong ["),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, text: str, failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)
    assert main.run(["fail"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(text)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            DiskFullError("no space", where="x", do="Make room: replicate -i INSTANCE status"),
            {"code": "DISK_FULL", "what": "no space", "where": "x", "do": "Make room: replicate -i a status"},
        ),
        (PermissionError(13, "Permission denied", "f"), {"code": "IO", "where": "f", "exit_code": 77}),
        (KeyboardInterrupt(), {"code": "INTERRUPTED", "exit_code": 130}),
        (ModuleNotFoundError("x", name="msgpack"), {"code": "PREREQUISITE_MISSING", "exit_code": 69}),
        (ValueError("two\nlines"), {"code": "INTERNAL", "exit_code": 70}),
        (click.UsageError("Wrong."), {"code": "USAGE", "what": "Wrong", "exit_code": 2}),
        (
            DaemonFailedError("CONFIGURATION: no [section] here. [a/b.toml]. Mend it", 78),
            {"code": "CONFIGURATION", "what": "no [section] here.", "where": "a/b.toml", "do": "Mend it"},
        ),
        (
            DaemonFailedError("EXISTS: it runs [/srv/a]. Stop it: replicate -i a update stop", 73),
            {"code": "EXISTS", "what": "it runs", "where": "/srv/a", "do": "Stop it: replicate -i a update stop"},
        ),
        (DaemonFailedError("Killed", 70), {"code": "DAEMON_FAILED", "what": "Killed", "where": "", "do": ""}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_with_json_an_error_is_an_object_on_standard_output(
    error: BaseException, told: dict[str, object], failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """So that whatever reads `replicate --json …` always gets JSON; people still have their line."""
    failing.append(error)
    code = main.run(["-i", "a", "--json", "fail"])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert list(found) == ["code", "what", "where", "do", "exit_code"]
    assert found["exit_code"] == code
    assert told.items() <= found.items()
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--json", "Missing command"),
        ("--json source", "Missing command"),
        ("status --bogus --json", "No such option '--bogus'"),
        ("journal show --last 0 --json", "Invalid value for '--last': 0 is not in the range x>=1"),
        ("--json journal show", "no instance is named"),
        ("-i nowhere --json status", "there is no such instance directory"),
        ("--json journal show -i", "Option '-i' requires an argument"),
    ],
)
def test_with_json_a_line_that_makes_no_sense_is_an_object_too(
    words: str, what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.delenv("REPLICATE_INSTANCE", raising=False)
    code = main.run(words.split())
    found = json.loads(capsys.readouterr().out)
    assert found["what"].startswith(what)
    assert code == found["exit_code"] == (69 if "nowhere" in words else 2)
    assert found["do"]


def test_an_error_in_mid_stream_is_the_last_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`journal show --json` up to a damaged frame."""

    @click.command(name="stream", cls=VerbCommand)
    def stream() -> None:
        emit({"seqno": 1}, ())
        raise JournalIOError("gone", where="x", do="y")

    monkeypatch.setitem(root.root.commands, "stream", stream)
    assert main.run(["stream", "--json"]) == 74
    out = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in out] == [
        {"seqno": 1},
        {"code": "IO", "what": "gone", "where": "x", "do": "y", "exit_code": 74},
    ]


def test_an_error_that_nobody_can_read_keeps_its_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "--json", "switchover"], stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False
        )
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_debug_shows_the_traceback(failing: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    failing.append(ValueError("x"))
    assert main.run(["--debug", "fail"]) == 70
    assert "Traceback" in capsys.readouterr().err
    failing[0] = JournalIOError("y")
    assert main.run(["--debug", "fail"]) == 74
    assert "Traceback" in capsys.readouterr().err


def test_traceback_of_our_bug_goes_into_the_instances_log(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    failing.append(ValueError("x"))
    assert main.run(["-i", str(tmp_path), "fail"]) == 70
    log = tmp_path / "log" / "command.log"
    assert str(log) in capsys.readouterr().err
    event = json.loads(log.read_text())
    assert "ValueError" in event["exception"]
    assert event["arguments"] == ["-i", str(tmp_path), "fail"]


def test_every_error_class_has_an_exit_code_of_the_table() -> None:
    def below(parent: type[ReplicateError]) -> list[type[ReplicateError]]:
        return [parent, *(kind for child in parent.__subclasses__() for kind in below(child))]

    assert {kind.exit_code for kind in below(ReplicateError)} <= set(EXIT_CODES)


@pytest.mark.slow
def test_usage(tmp_path: Path) -> None:
    assert command("--version", home=tmp_path).stdout.startswith("replicate, version ")
    helped = command("source", "start", "-h", home=tmp_path)
    assert helped.returncode == 0
    assert "--peer" in helped.stdout
    assert command(home=tmp_path).returncode == 2
    wrong = command("source", "begin", home=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    nobody = command("instance", "show", home=tmp_path, REPLICATE_INSTANCE="")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (2, 1)
    assert "REPLICATE_INSTANCE" in nobody.stderr
    missing = command("-i", "nope", "instance", "show", home=tmp_path)
    assert (missing.returncode, missing.stderr.count("\n")) == (69, 1)


@pytest.mark.parametrize("word", root.OTHER_WORDS)
def test_a_word_of_other_products_gets_the_name_that_it_has_here(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word not in root.root.commands
    assert main.run([word]) == 2
    here = root.OTHER_WORDS[word]
    assert capsys.readouterr().err == f"USAGE: No such command {word!r}: {here} [replicate]. Try 'replicate --help'\n"
    named = re.findall(r"replicate (?:-i INSTANCE )?([a-z]+) ?([a-z]*)", here)
    assert named
    for noun, verb in named:  # and all that is named is there
        if noun == "help":
            assert verb in chapters(MANUAL)
            continue
        found = root.root.commands[noun]
        assert not isinstance(found, click.Group) or verb in found.commands


def test_c_locale_and_no_terminal(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": ""}
    path = tmp_path / "Ünïcode and space"
    made = command("instance", "create", str(path), "--name", "p", home=tmp_path, **plain)
    assert made.returncode == 0, made.stderr
    shown = command("-i", str(path), "--json", "instance", "show", home=tmp_path, **plain)
    assert json.loads(shown.stdout)["name"] == "p"
    assert command("-i", str(path / "ñ"), "instance", "show", home=tmp_path, **plain).returncode == 69


def test_a_reader_that_went_away_is_no_error(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with os.fdopen(write_fd, "wb") as gone:
        done = subprocess.run(
            [*COMMAND, "config", "show", "--defaults"], stdout=gone, stderr=subprocess.PIPE, env=env, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("config", "show", "--defaults"), ("--version",)])
def test_a_full_output_is_an_io_error(words: tuple[str, ...], unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, env=env, check=False)
    assert done.returncode == 74
    assert done.stderr.count(b"\n") == 1


def _distribution(site: Path, name: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


def test_the_other_package_beside_ours_is_refused(tmp_path: Path) -> None:
    _distribution(tmp_path, "replicate")
    done = command("--version", home=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert "OTHER_PACKAGE" in done.stderr
    assert "pip uninstall replicate" in done.stderr


def test_a_package_that_is_only_named_alike_is_none_of_ours(tmp_path: Path) -> None:
    _distribution(tmp_path, "replicate_tools")
    assert command("--version", home=tmp_path, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}").returncode == 0


def test_the_other_package_over_ours_is_noticed(tmp_path: Path) -> None:
    """Theirs was installed last: its __init__ has replaced ours, and our other modules are still there."""
    ours = tmp_path / "site" / "replicate"
    ours.mkdir(parents=True)
    (ours / "__init__.py").write_text("class Client: ...\n")
    for part in ("cli", "errors.py", "other_package.py"):
        (ours / part).symlink_to(ROOT / "replicate" / part)
    done = command("status", home=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1
    assert "overwritten replicate/__init__.py" in done.stderr


def test_a_shell_completes_verbs(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "replicate journal ver", "COMP_CWORD": "2"}
    done = command(home=tmp_path, _REPLICATE_COMPLETE="bash_complete", **words)
    assert (done.returncode, done.stdout) == (0, "plain,verify\n"), done.stderr
    script = command(home=tmp_path, _REPLICATE_COMPLETE="zsh_source")
    assert script.returncode == 0
    assert "compdef" in script.stdout


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, replicate; print(replicate.__dualsite__, sorted({'apsw', 'trio', 'click'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True, env={**os.environ}
    )
    assert done.stdout.strip() == "True []"


def test_the_module_for_sqlalchemy_needs_no_import_of_its_own() -> None:
    """The manual names `replicate.dbapi` after a bare `import replicate`."""
    code = "import replicate; print(replicate.dbapi.connect.__module__, replicate.dbapi.apilevel)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("replicate.dbapi 2.0\n", "")


def test_every_verb_that_a_text_names_is_there() -> None:
    """What errors, findings and help tell an operator to type: each verb of a noun exists under this name."""
    nouns = {name: noun.commands for name, noun in root.root.commands.items() if isinstance(noun, click.Group)}
    pattern = re.compile(rf"replicate(?: -i [^ ]+)? ({'|'.join(nouns)}) ([a-z][a-z-]*)")
    named = [
        (path.name, *found)
        for package in main.OURS
        for path in (ROOT / package).rglob("*.py")
        for found in pattern.findall(path.read_text())
    ]
    assert len(named) > 50
    assert [one for one in named if one[2] not in nouns[one[1]]] == []
