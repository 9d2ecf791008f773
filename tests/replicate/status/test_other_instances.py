"""Other instances in findings: by what can be typed where the reader is, and on which host they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.instance.consumers import write_hold
from replicate.instance.instance import Instance
from replicate.status.collect import collect
from replicate.status.other_instances import OtherInstance, look_for, placed

HERE = OtherInstance("west", "'/srv/a b/west'")
NAMED = OtherInstance("west", "west")
THERE = OtherInstance("west", "", "192.0.2.2")
ON_LOOPBACK = OtherInstance("west", "", "127.0.0.1")
UNKNOWN = OtherInstance("west")
DO = "there: replicate -i west status; replicate -i western status"


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        (DO, NAMED, DO),
        (DO, HERE, "there: replicate -i '/srv/a b/west' status; replicate -i western status"),
        (DO, THERE, f"{DO} (west is on host 192.0.2.2, by its name or its directory there)"),
        (DO, ON_LOOPBACK, f"{DO} (west is on this host: give its directory for the name)"),
        (DO, UNKNOWN, f"{DO} (west is on another host, by its name or its directory there)"),
        ("compare --with west; then", HERE, "compare --with '/srv/a b/west'; then"),
        ("replicate -i x source start --peer west", THERE, "replicate -i x source start --peer west"),
    ],
)
def test_what_a_finding_says_of_another_instance(text: str, other: OtherInstance, expected: str) -> None:
    assert placed(text, [OtherInstance("nobody"), other]) == expected


def test_it_is_found_by_its_name_or_beside_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("REPLICATE_HOME", str(home))
    east = Instance.create(tmp_path / "sites" / "east", role="primary")
    network = east.content.network
    Instance.create(home / "north", role="secondary", network=network)
    Instance.create(tmp_path / "sites" / "west", role="secondary", network=network)
    Instance.create(tmp_path / "sites" / "stranger", role="secondary", network=bytes(16))
    (tmp_path / "sites" / "broken").mkdir()
    (tmp_path / "sites" / "broken" / "instance.json").write_text("{")
    names = ("north", "west", "stranger", "broken", "far", "", "east", "no/name")
    found = look_for(east, {name: f"{name}.example" for name in names})
    assert {other.name: (other.typed, other.host) for other in found} == {
        "north": ("north", "north.example"),
        "west": (str(tmp_path / "sites" / "west"), "west.example"),
        **{name: ("", f"{name}.example") for name in ("stranger", "broken", "far", "no/name")},
    }


def test_the_findings_of_status_say_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    east = Instance.create(tmp_path / "east", role="primary")
    for name, host in (("west", "127.0.0.1"), ("far", "192.0.2.2")):
        east.register_peer(name, host, 7430)
    Instance.create(tmp_path / "west", role="secondary", network=east.content.network)
    for name in ("west", "far"):
        write_hold(east.consumers_directory, name, 5)
    found = {finding.subject: finding.do for finding in collect(east).findings if finding.code == "SEED_WAITING"}
    assert found["west"].startswith(f"load it there: replicate -i {tmp_path}/west seed; ")
    assert found["far"].endswith(" (far is on host 192.0.2.2, by its name or its directory there)")
