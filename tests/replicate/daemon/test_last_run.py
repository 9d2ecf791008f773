"""With which settings a daemon ran last: what is noted, who hears of it, and the command that gives them again."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from replicate.cli.root import root
from replicate.daemon import control
from replicate.daemon.daemon import DaemonContext, run_daemon
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import LastRun, note_last_run, read_last_run, run_with, start_again, warning_of
from replicate.daemon.status_file import DaemonStatus
from replicate.errors import AlreadyRunningError, ConfigurationError, PermissionRefusedError
from replicate.instance.instance import Instance
from replicate.instance.settings_file import set_setting, unset_setting
from replicate.model.start_command import again_command, start_command, stop_command
from replicate.settings.load import SETTINGS, Config
from replicate.status.collect import collect

FAR = {"receiver.listen": "192.0.2.2:7430", "receiver.allow": "primary"}
FLAGS = "--listen 192.0.2.2:7430 --allow primary"


@pytest.fixture
def secondary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    network = Instance.create("primary", role="primary").content.network
    return Instance.create("secondary", role="secondary", network=network)


def ran(instance: Instance, name: str = "receiver", **given: object) -> None:
    """A run that was killed."""
    files = DaemonFiles(instance.path, name)
    os.close(files.lock.acquire())
    settings = {key.replace("__", "."): value for key, value in given.items()}
    note_last_run(files, run_with(Instance.open(instance.path).config, settings))
    files.status.write(DaemonStatus(name, 1, "serving", "waiting", 1, 2))


def run(instance: Instance, overrides: dict[str, object], *, fails: bool = False) -> list[dict[str, object]]:
    """A daemon in this process that serves, or fails before it does; what it has logged."""

    async def serve(context: DaemonContext) -> None:
        if fails:
            raise PermissionRefusedError("not today")
        context.ready("here")
        await trio.lowlevel.checkpoint()

    log = instance.path / "log" / "receiver.log"
    log.unlink(missing_ok=True)
    if fails:
        with pytest.raises(PermissionRefusedError):
            run_daemon("receiver", instance.path, serve, overrides=overrides)
    else:
        run_daemon("receiver", instance.path, serve, overrides=overrides)
    return [json.loads(line) for line in log.read_text().splitlines()]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["-i", "secondary", *arguments], standalone_mode=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of daemons that are to be started."""
    calls: list[list[str]] = []

    def start(_files: DaemonFiles, arguments: list[str], *, timeout_s: float) -> control.StartedDaemon:
        calls.append(arguments)
        return control.StartedDaemon(4711, "here")

    monkeypatch.setattr(control, "start", start)
    return calls


# The commands.


def test_the_commands_of_a_daemon() -> None:
    assert start_command("receiver") == "replicate -i INSTANCE receiver start"
    assert start_command("receiver", FAR, of="'two words'") == f"replicate -i 'two words' receiver start {FLAGS}"
    assert start_command("source-a-b", {"log.row_values": True}) == (
        "replicate -i INSTANCE source start --peer a-b --set log.row_values=true"
    )
    assert start_command("update", FAR).endswith(
        "update start --set receiver.listen=192.0.2.2:7430 --set receiver.allow=primary"
    )
    assert start_command("receiver", {"receiver.allow": "a, b=$(rm x)"}).endswith(" --allow 'a, b=$(rm x)'")
    assert again_command("source-west", of="east") == (
        f"{stop_command('source-west', of='east')}; {start_command('source-west', of='east')}"
    )


KEYS = sorted(set(SETTINGS) - {"receiver.listen", "receiver.allow"} - {k for k in SETTINGS if "metrics" in k})


@given(
    listen=st.sampled_from([None, "[::1]:99", "a.example:1"]),
    allow=st.sampled_from([None, "a, b", "west=*.example.com", "it's"]),
    keys=st.sets(st.sampled_from(KEYS), max_size=3),
)
def test_a_pasted_command_gives_what_the_last_run_was_given(
    listen: str | None, allow: str | None, keys: set[str]
) -> None:
    """Through the command line's own parser, and the settings' own check."""
    from replicate.cli.daemons import overrides

    flags: dict[str, object] = {key: SETTINGS[key].default for key in sorted(keys)}
    flags |= {"receiver.listen": listen} if listen else {}
    flags |= {"receiver.allow": allow} if allow and "'" not in allow else {}
    given_before = run_with(Config(), flags).given
    words = shlex.split(start_command("receiver", given_before))
    command = root.commands["receiver"].commands["start"]  # type: ignore[attr-defined]
    parsed = command.make_context("start", words[5:]).params
    again = overrides(parsed["assignments"], receiver__listen=parsed["listen"], receiver__allow=parsed["allow"])
    assert run_with(Config(), again).given == given_before


# What is missing.


def test_what_the_next_start_would_not_have() -> None:
    last = run_with(Config(), FAR)
    assert last.missing(Config()) == FAR
    assert last.missing(Config(), {"receiver.listen"}) == {"receiver.allow": "primary"}
    assert last.missing(Config().with_values(FAR)) == {}
    assert LastRun().missing(Config()) == {}


def test_a_later_word_of_the_file_wins_over_an_old_flag() -> None:
    last = run_with(Config(), FAR)
    assert last.missing(Config().with_values({"receiver.listen": "192.0.2.9:1"})) == {"receiver.allow": "primary"}


def test_a_flag_is_noted_as_the_setting_that_it_became(secondary: Instance) -> None:
    with pytest.raises(ConfigurationError):
        run_with(Config(), {"receiver.xoff_percent": "many"})
    run(secondary, {"receiver.pool_bytes": "4 MiB", "receiver.xoff_percent": "50", "receiver.xon_percent": "40"})
    found = read_last_run(DaemonFiles(secondary.path, "receiver"))
    assert found.given == {"receiver.pool_bytes": 4 * 2**20, "receiver.xoff_percent": 50, "receiver.xon_percent": 40}
    assert found.stood["receiver.xoff_percent"] == 90


# What is noted.


def test_a_run_without_flags_writes_nothing_and_one_with_flags_is_kept(secondary: Instance) -> None:
    files = DaemonFiles(secondary.path, "receiver")
    run(secondary, {})
    assert not files.last_run.exists()
    events = run(secondary, dict(FAR))
    assert events[0]["given"] == FAR
    assert read_last_run(files).given == FAR
    assert os.stat(files.last_run).st_mode & 0o777 == 0o600


def test_a_start_that_fails_without_flags_does_not_make_those_of_the_last_run_forgotten(secondary: Instance) -> None:
    files = DaemonFiles(secondary.path, "receiver")
    run(secondary, dict(FAR), fails=True)
    assert read_last_run(files).given == FAR  # or who mends it would start it without them
    run(secondary, {}, fails=True)
    assert read_last_run(files).given == FAR
    run(secondary, {})
    assert read_last_run(files).given == {}


def test_the_log_names_what_is_missing(secondary: Instance) -> None:
    run(secondary, dict(FAR))
    (warned,) = [event for event in run(secondary, {"log.level": "info"}) if event["level"] == "warning"]
    assert warned["missing"] == FAR
    assert f"replicate -i {secondary.path} receiver start {FLAGS} --set log.level=info" in str(warned["do"])
    assert not [event for event in run(secondary, {}) if event["level"] == "warning" and "missing" not in event]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "given": 3, "stood": {}}', "null"])
def test_a_note_that_makes_no_sense_is_a_run_without_flags(secondary: Instance, text: str) -> None:
    files = DaemonFiles(secondary.path, "receiver")
    files.last_run.write_text(text)
    files.last_run.chmod(0o600)
    assert read_last_run(files) == LastRun()
    run(secondary, dict(FAR))
    assert read_last_run(files).given == FAR


def test_only_settings_of_the_table_become_words_of_a_command(secondary: Instance) -> None:
    files = DaemonFiles(secondary.path, "receiver")
    made = {"receiver.listen": "a:1", "receiver.lisen": "b:1", "; rm": "-rf", "receiver.xoff_percent": "$(rm)"}
    files.last_run.write_text(json.dumps({"format": 1, "given": made, "stood": {}}))
    assert read_last_run(files).given == {"receiver.listen": "a:1"}


def test_run_may_be_removed_and_the_note_stays(secondary: Instance) -> None:
    ran(secondary, receiver__listen="192.0.2.2:7430")
    for path in secondary.run_directory.iterdir():
        path.unlink()
    assert start_again(secondary, "receiver").endswith("receiver start --listen 192.0.2.2:7430")


# Who hears of it.


def test_status_prints_the_command_that_brings_it_back_as_it_ran(secondary: Instance) -> None:
    ran(secondary, receiver__listen="192.0.2.2:7430", receiver__allow="primary")
    ran(secondary, "update", log__level="debug")
    found = {finding.subject: finding.do for finding in collect(Instance.open("secondary")).findings}
    assert found["receiver"] == f"replicate -i secondary receiver start {FLAGS}"
    assert found["update"].endswith("; then replicate -i secondary update start --set log.level=debug")
    told = json.loads(invoke("--json", "status").stdout)
    assert told["receiving"]["receiver"]["given"] == FAR
    assert f"replicate -i secondary receiver start {FLAGS}\n" in invoke("status").stdout


def test_a_command_is_not_broken_however_narrow_the_terminal_is(
    secondary: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(secondary, receiver__allow="a, b=c", receiver__listen="192.0.2.2:7430", log__level="debug")
    ran(secondary, "update", region__init="a=b:c,d=e:f", log__level="debug")
    monkeypatch.setenv("COLUMNS", "40")
    lines = [line.strip() for line in invoke("status").stdout.splitlines()]
    given = "--allow 'a, b=c' --listen 192.0.2.2:7430 --set log.level=debug"
    assert f"replicate -i secondary receiver start {given}" in lines
    assert "replicate -i secondary update start --set region.init=a=b:c,d=e:f --set log.level=debug" in "\n".join(lines)


def test_start_warns_and_starts_what_it_was_asked_for(secondary: Instance, started: list[list[str]]) -> None:
    ran(secondary, receiver__listen="192.0.2.2:7430", receiver__allow="primary")
    done = invoke("receiver", "start")
    assert done.exception is None
    assert done.stdout.startswith("receiver serves as process 4711: here\n")
    for part in (
        "WARNING: receiver was started with ",
        'receiver.listen = "192.0.2.2:7430"',
        'now has receiver.listen = "127.0.0.1:7430"',
        f"replicate -i secondary receiver stop; replicate -i secondary receiver start {FLAGS}",
        "replicate -i secondary config set receiver.listen 192.0.2.2:7430",
    ):
        assert part in done.stderr
    assert invoke("receiver", "start", "--listen", "127.0.0.1:1", "--allow", "").stderr == ""
    assert 'receiver.allow = "primary"' in invoke("receiver", "start", "--listen", "127.0.0.1:1").stderr
    assert started[0][2:] == ["receiver", "run"]
    set_setting(secondary, "receiver.listen", "192.0.2.2:7430")
    set_setting(secondary, "receiver.allow", "primary")
    assert invoke("receiver", "start").stderr == ""


OLDER = {"listen": "192.0.2.2:7430", "source_last_seqno": None}
"""In the status of a Receiver Server of a release that did not note its run."""


@pytest.mark.parametrize(
    ("facts", "warns"),
    [
        (OLDER, True),
        ({**OLDER, "listen": "127.0.0.1:7430"}, False),
        ({**OLDER, "is_streaming": False}, False),
        ({"listen": "192.0.2.2:7430"}, False),
        ({**OLDER, "listen": "nowhere"}, False),
        ({**OLDER, "listen": 7}, False),
        ({}, False),
    ],
)
def test_of_a_run_of_an_older_release_its_address_is_known(
    secondary: Instance, facts: dict[str, object], warns: bool, started: list[list[str]]
) -> None:
    files = DaemonFiles(secondary.path, "receiver")
    files.status.write(DaemonStatus("receiver", 1, "stopped", "", 1, 2, facts))
    said = invoke("receiver", "start").stderr
    assert ("replicate -i secondary receiver start --listen 192.0.2.2:7430" in said) is warns
    assert invoke("receiver", "start", "--listen", "127.0.0.1:1").stderr == ""
    set_setting(secondary, "receiver.listen", "127.0.0.1:7431")
    assert invoke("receiver", "start").stderr == ""


def test_run_in_the_foreground_warns_too_but_not_for_a_start_that_has_said_it(
    secondary: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicate.daemon.daemon.run_daemon", lambda *_words, **_more: None)
    ran(secondary, receiver__listen="192.0.2.2:7430")
    assert "WARNING: receiver was started with receiver.listen" in invoke("receiver", "run").stderr
    assert invoke("receiver", "run", "--ready-fd", "9").stderr == ""


@pytest.mark.parametrize("verb", ["start", "run"])
def test_a_start_that_is_refused_as_the_daemon_runs_does_not_warn(secondary: Instance, verb: str) -> None:
    ran(secondary, receiver__listen="192.0.2.2:7430")
    with DaemonFiles(secondary.path, "receiver").lock.kept_down("replay"):
        done = invoke("receiver", verb)
    assert isinstance(done.exception, AlreadyRunningError)
    assert "WARNING" not in done.stderr


def test_every_setting_that_is_missing_is_in_the_warning() -> None:
    text = warning_of("update", {"log.level": "debug"}, Config(), "AGAIN", "east")
    assert text == (
        'update was started with log.level = "debug" on its command line before, and now has log.level = "info". To '
        "have it as before: AGAIN. To have it so at every start, first: replicate -i east config set log.level debug"
    )


# `config set` and its word to the operator.


def test_config_set_says_which_daemons_are_to_be_started_again(secondary: Instance) -> None:
    ran(secondary, receiver__listen="192.0.2.2:7430", receiver__allow="primary")
    fd = DaemonFiles(secondary.path, "receiver").lock.acquire()
    other = DaemonFiles(secondary.path, "update").lock.acquire()
    try:
        done = invoke("config", "set", "receiver.listen", "192.0.2.3:7430")
        assert done.stdout.splitlines() == [
            'receiver.listen is "192.0.2.3:7430", was "127.0.0.1:7430" (the default) '
            f"[{secondary.path / 'replicate.toml'}]",
            "receiver has what stood there at its start; for this one: replicate -i secondary receiver stop; "
            "replicate -i secondary receiver start --allow primary",
        ]
        told = json.loads(invoke("--json", "config", "set", "receiver.xoff_percent", "85").stdout)
        assert set(told["start_again"]) == {"receiver", "update"}
        assert (told["was"], told["now"], told["applications_too"]) == ("90", "85", False)
        again = invoke("config", "set", "receiver.xoff_percent", "85").stdout
        assert again == f"receiver.xoff_percent is 85, as before [{secondary.path / 'replicate.toml'}]\n"
    finally:
        os.close(fd)
        os.close(other)
    out = invoke("config", "unset", "receiver.xoff_percent").stdout.splitlines()
    assert out[0].startswith("receiver.xoff_percent is 90 (the default), was 85 [")
    assert out[1] == "no daemon that reads it runs; each has it from its next start on"
    assert "an application has it" in invoke("config", "set", "journal.durability", "interval").stdout


def test_config_set_takes_a_value_that_begins_with_a_dash_for_a_value(secondary: Instance) -> None:
    done = invoke("config", "set", "receiver.xon_percent", "-5")
    assert isinstance(done.exception, ConfigurationError)
    assert (done.exception.exit_code, "= -5 is out of bounds" in str(done.exception)) == (78, True)


def test_config_set_works_where_the_settings_are_refused(secondary: Instance) -> None:
    (secondary.path / "replicate.toml").write_text("[receiver]\nlisten = 7\n[journal]\nx = 1\n")
    out = invoke("config", "set", "receiver.listen", "127.0.0.1:1").stdout
    assert "still refused: CONFIGURATION: unknown key journal.x" in out
    assert unset_setting(secondary, "journal.x").still_refused == ()


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_has_its_users(key: str) -> None:
    from replicate.settings.users import _OF_SECTIONS, users_of

    assert key.partition(".")[0] in _OF_SECTIONS or users_of(key)
