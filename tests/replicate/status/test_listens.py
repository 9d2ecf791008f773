"""status/listens.py: a Receiver Server that listens where no source comes says where that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.instance.instance import Instance
from replicate.instance.settings_file import set_setting
from replicate.status.collect import collect
from replicate.status.listens import Listens, listens
from replicate.status.report import findings
from tests.replicate.status.test_collect import JOURNAL, RECEIVING, REGION, RUNS, heard, says

AGAIN = "replicate -i INSTANCE receiver stop; replicate -i INSTANCE receiver start"


@pytest.mark.parametrize(
    ("at", "settings", "is_given", "expected"),
    [
        ("127.0.0.1:7430", "127.0.0.1:7430", False, Listens("127.0.0.1:7430")),
        ("127.0.0.1:7430", "localhost", False, Listens("127.0.0.1:7430")),
        ("127.0.0.1:40001", "127.0.0.1:0", False, Listens("127.0.0.1:40001")),
        ("127.0.0.1:7430", "192.0.2.2:7430", False, Listens("127.0.0.1:7430", "192.0.2.2:7430")),
        ("127.0.0.1:7430", "127.0.0.1:7431", False, Listens("127.0.0.1:7430", "127.0.0.1:7431")),
        ("192.0.2.2:7430", "127.0.0.1:7430", True, Listens("192.0.2.2:7430")),
        ("[::1]:7430", "[::1]", False, Listens("[::1]:7430")),
        ("", "127.0.0.1:7430", False, Listens()),
        (None, "127.0.0.1:7430", False, Listens()),
        (7430, "127.0.0.1:7430", False, Listens()),
        ("no address", "127.0.0.1:7430", False, Listens("no address")),
    ],
)
def test_whether_the_settings_say_something_else(at: object, settings: str, is_given: bool, expected: Listens) -> None:
    assert listens(at, settings, is_given=is_given) == expected


@pytest.mark.parametrize(
    ("where", "source", "text", "do"),
    [
        (Listens(), "east", "", "on the primary: replicate -i east source status"),
        (Listens(), "a, b", "", "there: replicate -i a source status; replicate -i b source status"),
        (Listens("192.0.2.2:7430"), "", "; the Receiver Server listens on 192.0.2.2:7430", "source status"),
        (Listens("127.0.0.1:7430", "", True), "east", "listens on 127.0.0.1:7430", "replicate -i east source status"),
        (Listens("127.0.0.1:7430", "", True), "", "listens on 127.0.0.1:7430", "replicate -i PRIMARY source status"),
        (Listens("127.0.0.1:7430"), "", "no other host reaches", f"config set receiver.listen HOST:PORT; {AGAIN}"),
        (Listens("127.0.0.1:7430", "192.0.2.2:7430"), "east", "the settings have 192.0.2.2:7430 by now", AGAIN),
        (Listens("no address"), "", "listens on no address", "source status"),
    ],
)
def test_where_no_source_comes_it_is_told(where: Listens, source: str, text: str, do: str) -> None:
    receiver = replace(RUNS, name="receiver", text="")
    receiving = replace(RECEIVING, receiver=receiver, is_connected=False, source=source, listens=where)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), receiving)
    assert found.code == "NO_SOURCE"
    assert found.text.startswith("no source is connected")
    assert found.text.endswith(text)
    assert found.do.endswith(do)


def test_one_that_was_started_before_its_address_was_set_is_found_on_its_own_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    fd = says(west, "receiver", {"is_connected": False, "source": "", "listen": "127.0.0.1:7430"})
    try:
        (before,) = [one for one in collect(west).findings if one.code == "NO_SOURCE"]
        set_setting(west, "receiver.listen", "192.0.2.2:7430")
        west = Instance.open(west.path)
        (after,) = [one for one in collect(west).findings if one.code == "NO_SOURCE"]
    finally:
        os.close(fd)
    assert "listens on 127.0.0.1:7430, which no other host reaches" in before.text
    assert f"replicate -i {west.named} config set receiver.listen HOST:PORT" in before.do
    assert "listens on 127.0.0.1:7430, and the settings have 192.0.2.2:7430 by now" in after.text
    assert after.do == f"replicate -i {west.named} receiver stop; replicate -i {west.named} receiver start"


@pytest.mark.parametrize(("source_host", "is_told"), [(None, True), ("", True), ("127.0.0.1", False)])
def test_what_the_run_before_has_heard_says_nothing_of_where_this_one_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source_host: str | None, is_told: bool
) -> None:
    """It was started again without the address of its command line."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    west = Instance.create(tmp_path / "west", role="secondary", network=b"n" * 16)
    facts = {"is_connected": False, "source": "", "listen": "127.0.0.1:7430", "source_host": source_host, **heard(30.0)}
    fd = says(west, "receiver", facts)
    try:
        (found,) = [one for one in collect(west).findings if one.code == "NO_SOURCE"]
    finally:
        os.close(fd)
    assert ("which no other host reaches" in found.text) is is_told
