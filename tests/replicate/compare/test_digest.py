"""Two instances compared by a digest that came as a file: what is equal, what differs, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from replicate.cli import main
from replicate.compare.compare import InstanceDigest, digest
from replicate.compare.digest import compare_digests, parse_digest
from replicate.errors import UsageError, WrongNetworkError
from replicate.region.sqlite.digest import RegionDigest, TableDigest
from tests.harness.pair import Pair

REGION = RegionDigest((TableDigest("a", 1, "1a"), TableDigest("b", 2, "2b")), "5c", "ff")
EAST = InstanceDigest("east", 7, (("main", REGION),), "network")
WEST = replace(EAST, instance="west")


def changed(**facts: object) -> InstanceDigest:
    return replace(WEST, regions=(("main", replace(REGION, **facts)),))  # type: ignore[arg-type]


def test_equal_digests_are_equal() -> None:
    found = compare_digests(EAST, WEST)
    assert (found.equal, found.tables, found.seqno) == (True, 2, 7)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (changed(tables=(TableDigest("a", 1, "xx"), REGION.tables[1])), ["a"]),
        (changed(tables=(TableDigest("a", 2, "1a"), REGION.tables[1])), ["a"]),
        (changed(tables=REGION.tables[:1]), ["b"]),
        (changed(tables=(*REGION.tables, TableDigest("c", 0, "00"))), ["c"]),
        (changed(schema="xx"), ["schema"]),
        (changed(digest="xx"), ["region"]),
        (replace(WEST, regions=()), ["region"]),
        (replace(WEST, regions=(*WEST.regions, ("second", REGION))), ["region"]),
    ],
)
def test_each_difference_is_named(other: InstanceDigest, what: list[str]) -> None:
    for found in (compare_digests(EAST, other), compare_digests(other, EAST)):
        assert not found.equal
        assert [difference.what for difference in found.differences] == what


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(WrongNetworkError):
        compare_digests(EAST, replace(WEST, network="another"))
    with pytest.raises(UsageError, match="with itself"):
        compare_digests(EAST, EAST)
    with pytest.raises(UsageError, match="at transaction 7, west at 8"):
        compare_digests(EAST, replace(WEST, seqno=8))
    with pytest.raises(UsageError, match="neither"):
        compare_digests(replace(EAST, regions=()), replace(WEST, regions=()))


WHOLE = '{"instance": "x", "seqno": 7, "regions": [], "network": "n"}'
NO_DIGESTS = [
    *("", "{}", "[]", "nothing", '{"instance": "x"}', '{"regions": 7}', "[" * 100_000),
    *(WHOLE.replace("7", number) for number in ("1e999", "-Infinity", "NaN", "9" * 5000)),
    WHOLE.replace('"x"', '"\\ud800"'),
]


@pytest.mark.parametrize("text", NO_DIGESTS)
def test_what_is_no_digest_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="no digest") as caught:
        parse_digest(text, where="some.json")
    assert "some.json" in str(caught.value)


def test_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path)
    pair.seed()
    file = tmp_path / "east.json"
    assert main.run(["-i", str(pair.primary.path), "--json", "digest"]) == 0
    file.write_text(capfd.readouterr().out)
    assert parse_digest(file.read_text(), where="") == digest(pair.primary, timeout_s=5)

    west = ["-i", str(pair.secondary.path), "compare"]
    assert main.run([*west, "--with-digest", str(file)]) == 0
    assert capfd.readouterr().out.startswith("west and east at seqno")
    assert main.run([*west, "--with-digest", str(file), "--at", "99"]) == 2
    assert main.run(west) == 2
    assert main.run([*west, "--with-digest", str(file), "--with", str(pair.primary.path)]) == 2
    assert main.run([*west, "--with-digest", str(tmp_path / "nothing")]) == 74
    assert len(capfd.readouterr().err.splitlines()) == 4
    passed = tmp_path / "passed.json"
    passed.write_text(json.dumps({**json.loads(file.read_text()), "seqno": 0}))
    assert main.run([*west, "--with-digest", str(passed)]) == 75
    said = capfd.readouterr().err
    assert f"run replicate -i {pair.secondary.path} --json digest --at N --timeout 600 >FILE on both hosts" in said

    both = tmp_path / "west.json"
    assert main.run(["-i", str(pair.secondary.path), "--json", "digest"]) == 0
    both.write_text(capfd.readouterr().out)
    assert main.run(["compare", "--with-digest", str(file), "--with-digest", str(both)]) == 0
    assert capfd.readouterr().out.startswith("east and west at seqno")
    assert main.run(["compare", *["--with-digest", str(file)] * 2]) == 2
    assert main.run(["compare", *["--with-digest", str(file)] * 3]) == 2
    capfd.readouterr()

    told = json.loads(file.read_text())
    told["regions"][0][1]["tables"][0]["digest"] = "0" * 32
    file.write_text(json.dumps(told))
    assert main.run([*west, "--json", "--with-digest", str(file)]) == 1
    found = json.loads(capfd.readouterr().out)
    assert (found["equal"], len(found["differences"])) == (False, 1)
