"""load.py and table.py: what is accepted, what is refused and in which words."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import ConfigurationError, PermissionRefusedError
from replicate.limits import MIB
from replicate.settings.load import (
    SETTINGS,
    Address,
    Config,
    default_text,
    load,
    parse,
    parse_address,
    shown,
    toml_value,
)


def test_default_file_is_the_defaults_commented_or_not() -> None:
    text = default_text()
    assert parse(text) == Config()
    uncommented = re.sub(r"(?m)^# ([a-z_]+ = )", r"\1", text)
    assert uncommented.count(" = ") == len(SETTINGS)
    assert parse(uncommented) == Config()


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.key)
def test_every_setting_has_a_sentence_and_sound_bounds(setting) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    facts = setting.facts
    assert facts.sentence.endswith(".")
    if setting.name.endswith("_bytes"):
        assert facts.unit == "bytes"
    if setting.name.endswith("_s"):
        assert facts.unit == "s"
    if isinstance(setting.default, (int, float)) and not isinstance(setting.default, bool):
        assert facts.least is not None
        assert facts.most is not None
        assert facts.least <= setting.default <= facts.most
    if facts.choices:
        assert setting.default in facts.choices
    assert Config().with_values({setting.key: setting.default}) == Config()


def test_contract_defaults() -> None:
    config = Config()
    assert (config.journal.durability, config.journal.segment_bytes) == ("durable", 64 * MIB)
    assert (config.source.hard_tries, config.source.hard_period_s, config.source.soft_period_s) == (5, 0.5, 5.0)
    assert (config.source.heartbeat_period_s, config.source.dead_after_s) == (15.0, 60.0)
    assert (config.receiver.xoff_percent, config.receiver.xon_percent) == (90, 80)
    assert config.receiver.listen == "127.0.0.1:7430"
    assert config.application.busy_timeout_s == 5.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[journl]", r"unknown section or key journl .*Did you mean \[journal\]"),
        ("[journal]\nsegment_byte = 1", r"unknown key journal.segment_byte .*mean journal.segment_bytes"),
        ("[journal]\nzzz = 1", r"unknown key journal.zzz .*\[journal\] knows durability, "),
        ("[source]\nlisten = 'x'", r"unknown key source.listen .*mean receiver.listen"),
        ("xoff_percent = 3", r"xoff_percent .*belongs into \[receiver\]"),
        ("journal = 3", r"journal is a section"),
        ("[zzz]", r"Known are journal"),
        ("[source]\nhard_tries = true", r"source.hard_tries = True is not a whole number .*Use 0 to"),
        ("[source]\nhard_tries = 1.5", r"not a whole number"),
        ("[source]\nhard_tries = -1", r"out of bounds .*Use 0 to 10000"),
        ("[source]\ndead_after_s = nan", r"out of bounds"),
        ("[source]\ndead_after_s = 'soon'", r"not a number"),
        ("[log]\nlevel = 'warn'", r"Did you mean 'warning'"),
        ("[log]\nlevel = 1", r"not a text .*Use one of debug"),
        ("[log]\nrow_values = 1", r"not true or false"),
        ("[journal]\npool_bytes = '1 KiB'", r'out of bounds .*Use "1 MiB" to "64 GiB"'),
        ("[journal]\npool_bytes = '1 furlong'", r'not a size such as "64 MiB"'),
        ("[source]\nheartbeat_period_s = 60", r"every peer would look dead"),
        ("[receiver]\nheartbeat_period_s = 61", r"receiver.dead_after_s"),
        ("[receiver]\nxon_percent = 90", r"xon_percent = 90 is not below"),
        ("[journal]\ncap_bytes = '100 MiB'", r"does not hold two segments"),
        ("[receiver]\nallow = 'a b='", r"'b=' is no NAME or NAME=CERTIFICATE-NAME"),
        ("[receiver]\nallow = '../x'", r"is no NAME"),
        ("[receiver]\nallow = 'east, east=x'", r"stands there twice"),
        ("[receiver]\nlisten = '127.0.0.1:99999'", r"is not HOST:PORT"),
        ("[receiver\n", r"not valid TOML"),
    ],
)
def test_refusals_name_the_key_and_the_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse(text, where="some file")
    assert "some file" in str(caught.value)
    assert caught.value.exit_code == 78
    assert "\n" not in str(caught.value)


def test_sizes_may_be_written_with_units_and_flags_come_as_text() -> None:
    config = parse("[journal]\nsegment_bytes = '8 MiB'\ncap_bytes = '0.5 GiB'\n[source]\ndead_after_s = 61\n")
    assert (config.journal.segment_bytes, config.journal.cap_bytes) == (8 * MIB, 512 * MIB)
    assert config.source.dead_after_s == 61.0
    flags = config.with_values({"source.hard_tries": "0", "log.row_values": "true", "source.soft_period_s": "1.5s"})
    assert (flags.source.hard_tries, flags.log.row_values, flags.source.soft_period_s) == (0, True, 1.5)
    assert config.source.hard_tries == 5
    with pytest.raises(ConfigurationError, match=r"unknown key source\.x .*command line"):
        config.with_values({"source.x": 1})


def test_values_are_shown_as_they_may_be_written() -> None:
    assert shown(SETTINGS["journal.cap_bytes"], 3 * MIB) == '"3 MiB"'
    assert shown(SETTINGS["journal.cap_bytes"], 3 * MIB + 1) == str(3 * MIB + 1)
    assert shown(SETTINGS["receiver.listen"], 'a"\\') == '"a\\"\\\\"'
    assert shown(SETTINGS["log.row_values"], True) == "true"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:0", "127.0.0.1", 0), ("localhost", "localhost", 7430), ("[::1]:5", "::1", 5), ("[::1]", "::1", 7430)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = parse_address(text, where="x")
    assert address == Address(host, port)
    assert address.is_loopback
    assert parse_address(str(address), where="x") == address


@pytest.mark.parametrize("text", ["", ":1", "a b:1", "::1", "a:b", "http://x:1", "x:-1", "a:1:2"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not HOST:PORT"):
        parse_address(text, where="x")


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert isinstance(parse(text), Config)
    except ConfigurationError:
        pass


def test_load(tmp_path: Path) -> None:
    assert load(tmp_path / "missing.toml") == Config()
    file = tmp_path / "replicate.toml"
    file.write_bytes(b"[log]\nlevel = '\xff'")
    with pytest.raises(ConfigurationError, match="byte 15 is not UTF-8"):
        load(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path)
    file.write_text("[log]\nlevel = 'debug'")
    assert load(file).log.level == "debug"


def test_unreadable_file_is_a_matter_of_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "no")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionRefusedError, match="instance's owner"):
        load(tmp_path / "x")


@pytest.mark.parametrize(
    "value",
    [*map(chr, range(0x100)), "\u2028", "one\ntwo", "\\u0041", 'a"b\\', True, False, 0, -1, 2**50, 0.5, 1e-7, 1e300],
)
def test_what_toml_is_shown_is_read_as_the_same(value: str | int | float | bool) -> None:
    found = tomllib.loads(f"x = {toml_value(value)}")["x"]
    assert (type(found), found) == (type(value), value)
