"""`config set` and `unset`: the file keeps its comments and its layout, and says what it said but for one setting."""

from __future__ import annotations

import errno
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import ConfigurationError, JournalIOError, PermissionRefusedError
from replicate.instance import settings_file
from replicate.instance.instance import Instance
from replicate.instance.settings_file import set_setting, unset_setting
from replicate.settings.load import SETTINGS, default_text, load
from replicate.system.asking_user import user_name

HAND_WRITTEN = """\
# Ann, 2026-03-01: the line to the other site is slow
[receiver]   # the other site sends here

  listen   =  "127.0.0.1:7444"   # not 7430: that is the test system's
xoff_percent = 50
xon_percent = 40

[log]
level = "debug" # while we look"""


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance.create(tmp_path / "east", role="primary")


def settings(instance: Instance, text: str | None = None) -> str:
    path = instance.path / "replicate.toml"
    if text is not None:
        path.write_bytes(text.encode())
    return path.read_bytes().decode()


def test_a_setting_stands_after_the_line_of_the_default_file_that_it_replaces(instance: Instance) -> None:
    before = settings(instance)
    changed = set_setting(instance, "receiver.listen", "192.0.2.2:7430")
    assert (changed.was, changed.was_default) == ('"127.0.0.1:7430"', True)
    assert (changed.now, changed.is_default) == ('"192.0.2.2:7430"', False)
    comment = '# listen = "127.0.0.1:7430"\n'
    assert settings(instance) == before.replace(comment, f'{comment}listen = "192.0.2.2:7430"\n')
    assert load(instance.path / "replicate.toml").receiver.listen == "192.0.2.2:7430"


@pytest.mark.turns(4)
@pytest.mark.parametrize("key", SETTINGS)
def test_set_and_unset_leave_the_default_file_as_it_was(instance: Instance, key: str) -> None:
    before = settings(instance)
    setting = SETTINGS[key]
    other = {
        "receiver.listen": "[::1]:99",
        "receiver.allow": "east, west=db.example.com",
        **dict.fromkeys(("source.metrics_listen", "receiver.metrics_listen", "update.metrics_listen"), "127.0.0.1:0"),
    }.get(key, str(setting.default))
    set_setting(instance, key, other)
    assert settings(instance) != before
    assert [line for line in settings(instance).splitlines() if line not in before.splitlines()] != []
    unset_setting(instance, key)
    assert settings(instance) == before == default_text()


def test_what_somebody_wrote_by_hand_stays_as_it_stands(instance: Instance) -> None:
    settings(instance, HAND_WRITTEN)
    set_setting(instance, "receiver.listen", "127.0.0.1:7445")
    expected = HAND_WRITTEN.replace("7444", "7445")
    assert settings(instance) == expected
    set_setting(instance, "receiver.allow", "west,north")
    found = settings(instance)
    assert [line for line in found.splitlines() if line not in expected.splitlines()] == ['allow = "west,north"']
    assert [line for line in found.splitlines() if line in expected.splitlines()] == expected.splitlines()
    set_setting(instance, "update.batch_bytes", "32MiB")
    assert tomllib.loads(settings(instance)) == {
        "receiver": {"listen": "127.0.0.1:7445", "xoff_percent": 50, "xon_percent": 40, "allow": "west,north"},
        "log": {"level": "debug"},
        "update": {"batch_bytes": "32 MiB"},
    }
    for key in ("update.batch_bytes", "receiver.allow"):
        unset_setting(instance, key)
    assert tomllib.loads(settings(instance)).pop("update") == {}
    assert settings(instance).startswith(expected)


@pytest.mark.parametrize(
    "text", ['receiver.listen = "a:1" # why\n', 'receiver = {listen = "a:1"} # why\n', "", "# me\n"]
)
def test_other_ways_of_writing_toml(instance: Instance, text: str) -> None:
    settings(instance, text)
    set_setting(instance, "receiver.allow", 'west="')
    set_setting(instance, "receiver.listen", "b:2")
    assert tomllib.loads(settings(instance)) == {"receiver": {"listen": "b:2", "allow": 'west="'}}
    assert [line for line in ("# why", "# me") if (line in text) != (line in settings(instance))] == []


def test_a_text_that_looks_like_a_section_is_none(instance: Instance) -> None:
    text = '[region]\ninit = """\n[receiver]\n# listen = 1\n:"""\n'
    settings(instance, text)
    set_setting(instance, "receiver.listen", "127.0.0.1:1")
    assert tomllib.loads(settings(instance)) == {**tomllib.loads(text), "receiver": {"listen": "127.0.0.1:1"}}


def test_a_file_that_is_not_there_is_made(instance: Instance) -> None:
    (instance.path / "replicate.toml").unlink()
    assert not unset_setting(instance, "log.level").is_changed
    assert not (instance.path / "replicate.toml").exists()
    set_setting(instance, "log.level", "debug")
    assert settings(instance) == '[log]\nlevel = "debug"\n'
    assert os.stat(instance.path / "replicate.toml").st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("receiver.lisen", "x", r"unknown key receiver\.lisen .*mean receiver\.listen"),
        ("listen", "x", r"belongs into \[receiver\]"),
        ("statistics_period_s", "30", r"belongs into \[source\] or \[receiver\] or \[update\]"),
        ("log.statistics_period_s", "30", r"mean source\.\w+ or receiver\.\w+ or update\.statistics_period_s\?"),
        ("receiver.xoff_percent", "many", "not a whole number"),
        ("update.lock_timeout_s", "-1", r"-1\.0 is out of bounds .*Use 0\.05 to 3600 s"),
        ("source.hard_tries", "-1", "= -1 is out of bounds .*Use 0 to"),
        ("update.lock_timeout_s", "--1", "'--1' is not a number"),
        ("receiver.xoff_percent", "96", "out of bounds"),
        ("receiver.xoff_percent", "79", "is not below"),
        ("receiver.listen", "nowhere:port", "is not HOST:PORT"),
        ("journal.cap_policy", "drop", "Did you mean|Use one of"),
        ("tls.loopback", "maybe", "true or false"),
    ],
)
def test_what_is_refused_changes_nothing(instance: Instance, key: str, value: str, message: str) -> None:
    before = os.stat(instance.path / "replicate.toml")
    with pytest.raises(ConfigurationError, match=message):
        set_setting(instance, key, value)
    after = os.stat(instance.path / "replicate.toml")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_value_is_checked_beside_those_of_the_file_and_not_beside_the_defaults(instance: Instance) -> None:
    settings(instance, HAND_WRITTEN)
    with pytest.raises(ConfigurationError, match="is not below"):
        set_setting(instance, "receiver.xon_percent", "60")
    with pytest.raises(ConfigurationError, match=r"xon_percent = 80 is not below .*= 50"):
        unset_setting(instance, "receiver.xon_percent")
    assert settings(instance) == HAND_WRITTEN
    set_setting(instance, "receiver.xon_percent", "30")


def test_a_slip_is_mended_by_it_and_another_one_told(instance: Instance) -> None:
    settings(instance, '[receiver]\nlisten = 7430\nlisten_on = "x"\n[jurnal]\na = 1\n')
    changed = set_setting(instance, "receiver.listen", "127.0.0.1:7430")
    assert (changed.was, len(changed.still_refused)) == ("7430", 2)
    unset_setting(instance, "receiver.listen_on")
    assert unset_setting(instance, "jurnal").still_refused == ()
    assert tomllib.loads(settings(instance)) == {"receiver": {"listen": "127.0.0.1:7430"}}
    with pytest.raises(ConfigurationError, match="unknown"):
        unset_setting(instance, "jurnal")
    settings(instance, "[receiver\n")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        set_setting(instance, "receiver.listen", "127.0.0.1:7430")


def test_mode_and_group_stay(instance: Instance) -> None:
    path = instance.path / "replicate.toml"
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 0, 12345)
    before = os.stat(path)
    set_setting(instance, "log.level", "debug")
    after = os.stat(path)
    assert before.st_ino != after.st_ino
    assert [(one.st_mode, one.st_uid, one.st_gid) for one in (before, after)] == [
        (before.st_mode, before.st_uid, before.st_gid)
    ] * 2


def test_a_file_of_somebody_else_is_left_to_them(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings(instance)
    uid = os.geteuid()
    monkeypatch.setattr(settings_file.os, "geteuid", lambda: uid + 1)
    with pytest.raises(PermissionRefusedError, match=f"belongs to user {user_name(uid)}"):
        set_setting(instance, "log.level", "debug")
    assert settings(instance) == before


@pytest.mark.parametrize("point", ["replace.before_rename", "replace.renamed"])
def test_a_disk_that_refuses_leaves_the_old_file_or_the_new_one(
    instance: Instance, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = settings(instance)

    def fail(name: str) -> None:
        if name == point:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("replicate.system.files.hit", fail)
    with pytest.raises(JournalIOError):
        set_setting(instance, "log.level", "debug")
    assert settings(instance) in (before, before.replace('# level = "info"\n', '# level = "info"\nlevel = "debug"\n'))
    assert sorted(path.name for path in instance.path.iterdir() if path.name.startswith(".")) == []


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_every_text_comes_back(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    before = "[tls]\n# mine\n"
    made = settings_file._with(before, SETTINGS["tls.ca"], text)
    assert tomllib.loads(made) == {"tls": {"ca": text}}
    assert made.startswith(before)
