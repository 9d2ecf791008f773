"""Commands that are printed to be pasted: a shell reads back the words that were meant, and each setting its value."""

from __future__ import annotations

import shlex

import pytest

from replicate.limits import KIB, MIB
from replicate.model.start_command import again_command, kind_of, start_command, stop_command, text_of
from replicate.settings.load import SETTINGS, convert
from replicate.settings.table import Scalar

NASTY = "a b'c\"d$(e)`f`\\g;h&i*ü"


def test_each_daemon_is_told_as_it_is_called() -> None:
    assert start_command("receiver") == "replicate -i INSTANCE receiver start"
    assert start_command("update", of="west") == "replicate -i west update start"
    assert stop_command("source-east") == "replicate -i INSTANCE source stop --peer east"
    assert kind_of("source-east-of-here") == "source"
    assert shlex.split(stop_command("source-a b"))[-2:] == ["--peer", "a b"]


def test_starting_again_is_stopping_and_starting() -> None:
    given: dict[str, Scalar] = {"log.level": "debug"}
    assert again_command("update", given, of="w") == f"{stop_command('update', of='w')}; " + start_command(
        "update", given, of="w"
    )


def test_what_has_a_flag_of_its_own_is_given_by_it() -> None:
    given: dict[str, Scalar] = {"receiver.listen": "[::1]:7430", "receiver.allow": "east", "log.level": "debug"}
    words = shlex.split(start_command("receiver", given))
    assert words[5:] == ["--listen", "[::1]:7430", "--allow", "east", "--set", "log.level=debug"]
    assert shlex.split(start_command("update", given))[5:7] == ["--set", "receiver.listen=[::1]:7430"]


def test_a_shell_reads_back_whatever_a_setting_holds() -> None:
    assert shlex.split(start_command("source-east", {"source.filter": NASTY}))[-1] == f"source.filter={NASTY}"


@pytest.mark.parametrize("key", SETTINGS)
def test_what_is_printed_of_a_setting_is_read_as_the_same(key: str) -> None:
    setting = SETTINGS[key]
    values: list[Scalar] = [setting.default, *setting.facts.choices]
    least, most = setting.facts.least, setting.facts.most
    values += [setting.kind(bound) for bound in (least, most) if bound is not None]
    if setting.kind is bool:
        values = [True, False]
    for value in values:
        text = text_of(key, value)
        assert convert(setting, text, "here") == value, text
        assert shlex.split(start_command("source-east", {key: value}))[-1] == f"{key}={text}"


def test_a_size_is_told_in_its_largest_whole_unit() -> None:
    assert text_of("journal.segment_bytes", 64 * MIB) == "64MiB"
    assert text_of("journal.segment_bytes", 64 * MIB + KIB) == "65537KiB"
    assert text_of("journal.segment_bytes", 64 * MIB + 1) == str(64 * MIB + 1)
    assert text_of("journal.reserve_bytes", 0) == "0"
