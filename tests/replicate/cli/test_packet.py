"""`replicate packet`: a site without a line, from its registration to its receipts, in words and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from replicate.cli.root import root
from replicate.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DamagedError,
    DiskFullError,
    NotFoundError,
    PacketGapError,
    UsageError,
    WrongInstanceError,
)
from replicate.instance.consumers import Consumer, write_consumer
from replicate.system import failpoint
from tests.harness.pair import Pair, assert_equal
from tests.replicate.cli.test_partition import said, told


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    monkeypatch.setenv("REPLICATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = Pair.create(tmp_path)
    said("-i", "east", "peer", "remove", "west")
    said("-i", "east", "peer", "add", "west", "--packets")
    said("-i", "east", "seed", "--to-file", str(tmp_path / "west.seed"), "--for", "west")
    said("-i", "west", "seed", "--from-file", str(tmp_path / "west.seed"))
    return made


def outbox(pair: Pair) -> list[Path]:
    return sorted((pair.primary.path / "packets" / "outbox").iterdir())


def test_there_and_back(pair: Pair) -> None:
    assert said("-i", "east", "peer", "list").startswith("west  by packets")
    assert said("-i", "east", "packet", "export").startswith("nothing to send: west should have 2")
    last = pair.write(5)
    words = said("-i", "east", "packet", "export", "--to", "west")
    assert words.startswith(f"packet 1 for west: transactions 3 to {last}, ")
    (path,) = outbox(pair)
    assert path.stat().st_mode & 0o077 == 0
    assert said("packet", "list", str(path)).startswith(f"{path}: east 1 for west, 3 to {last}; ")
    assert said("packet", "verify", str(path)) == f"{path}: whole, 3 to {last}\n"
    shown = told("packet", "show", str(path))
    assert shown["epochs"][0].keys() == {"origin", "base", "end", "sender"}
    assert (shown["number"], shown["before"], shown["signer"], shown["sealed"]) == (1, 0, "", False)
    assert "east/1" in said("packet", "show", str(path))
    assert f"1 packet would be applied\nwould replay {last - 2} transactions" in said(
        "-i", "west", "packet", "import", "--dry-run", str(path)
    )
    done = told("-i", "west", "packet", "import", str(path.parent), "--remove")
    assert (done["seqno"], done["applied"], done["removed"], done["heard"]) == (last, [str(path)], 1, ["east"])
    assert_equal(pair)
    assert said("-i", "west", "packet", "import", str(path.parent)) == "no packet for this instance is there\n"
    (pair.directory / "stick").mkdir()
    assert f"receipt at {last}" in said(
        "-i", "west", "packet", "export", "--to", "east", "--receipt", "--outbox", str(pair.directory / "stick")
    )
    assert said("-i", "east", "packet", "import", str(pair.directory / "stick")) == "heard of west\n"
    assert f"durable up to {last}" in said("-i", "east", "peer", "list")
    assert said("-i", "east", "packet", "exports", "--to", "nobody") == "no packet was made here\n"
    assert [one["number"] for one in told("-i", "east", "packet", "exports")] == [1]


def test_a_gap_ends_with_its_own_code(pair: Pair) -> None:
    pair.write(2)
    said("-i", "east", "packet", "export")
    pair.write(2)
    said("-i", "east", "packet", "export")
    first, second = outbox(pair)
    with pytest.raises(PacketGapError) as caught:
        said("-i", "west", "packet", "import", str(second))
    assert caught.value.exit_code == 75
    first.unlink()
    words = said("-i", "east", "packet", "recover", "--to", "west", "--number", "1")
    assert words.startswith("the next packet for west begins after transaction 2\nnext: replicate -i ")
    said("-i", "east", "packet", "export")
    said("-i", "west", "packet", "import", str(second.parent))
    assert_equal(pair)


def test_recovering_by_a_receipt(pair: Pair) -> None:
    pair.write(2)
    said("-i", "east", "packet", "export")
    (lost,) = outbox(pair)
    lost.unlink()
    said("-i", "west", "packet", "export", "--to", "east", "--receipt", "--file", "back.packet")
    told_of = told("-i", "east", "packet", "recover", "--to", "west", "--receipt", "back.packet")
    assert told_of == {"peer": "west", "seqno": 2}
    said("-i", "east", "packet", "export")
    said("-i", "west", "packet", "import", str(lost.parent))
    assert_equal(pair)


def test_a_receipt_by_a_slow_clock_counts_when_an_operator_brings_it(pair: Pair) -> None:
    write_consumer(pair.primary.consumers_directory, Consumer("west", pair.write(2), "", 2**62))
    said("-i", "west", "packet", "export", "--to", "east", "--receipt", "--file", "back.packet")
    said("-i", "east", "packet", "import", "back.packet")
    assert f"durable up to {pair.last_seqno()}" in said("-i", "east", "peer", "list")
    said("-i", "east", "packet", "recover", "--to", "west", "--receipt", "back.packet")
    assert "durable up to 2" in said("-i", "east", "peer", "list")
    said("-i", "east", "packet", "export")
    said("-i", "west", "packet", "import", str(pair.primary.path / "packets" / "outbox"))
    assert_equal(pair)


def test_the_hook_is_told_each_packet(pair: Pair) -> None:
    hook = pair.directory / "hook.sh"
    hook.write_text('#!/bin/sh\necho "$1:$2" >>"$0.log"\nexit 0\n')
    hook.chmod(0o755)
    said("-i", "east", "config", "set", "packets.hook", f"{hook} 'a b'")
    pair.write(1)
    said("-i", "east", "packet", "export")
    assert (pair.directory / "hook.sh.log").read_text() == f"a b:{outbox(pair)[0]}\n"
    hook.write_text("#!/bin/sh\nexit 3\n")
    pair.write(1)
    with pytest.raises(ConfigurationError, match=r"packet 2 is whole, and packets\.hook ended with 3"):
        said("-i", "east", "packet", "export")
    said("-i", "east", "config", "set", "packets.hook", "/nowhere")
    pair.write(1)
    with pytest.raises(ConfigurationError, match="cannot be run"):
        said("-i", "east", "packet", "export")
    assert len(outbox(pair)) == 3


def test_a_hook_that_fails_for_one_packet_is_run_for_the_others(pair: Pair) -> None:
    """Their epochs have moved: nobody would send them later."""
    said("-i", "east", "peer", "add", "off", "--packets")
    said("-i", "east", "epochs", "set", "off", "2", "--yes")
    hook = pair.directory / "hook.sh"
    hook.write_text('#!/bin/sh\necho "$1" >>"$0.log"\ncase "$1" in *west*) exit 3;; esac\n')
    hook.chmod(0o755)
    said("-i", "east", "config", "set", "packets.hook", str(hook))
    pair.write(1)
    with pytest.raises(ConfigurationError, match=r"packet 1 is whole, and packets\.hook ended with 3") as caught:
        said("-i", "east", "packet", "export")
    assert f"Carry {outbox(pair)[1]} yourself" in caught.value.do
    assert sorted((pair.directory / "hook.sh.log").read_text().split()) == sorted(map(str, outbox(pair)))
    assert len(outbox(pair)) == 2


def test_one_peer_that_cannot_be_served_does_not_stop_the_others(pair: Pair) -> None:
    said("-i", "east", "peer", "add", "able", "--packets")  # nothing is known of it
    last = pair.write(2)
    with pytest.raises(NotFoundError, match="nothing is known of what able has"):
        said("-i", "east", "packet", "export")
    assert [one["last_seqno"] for one in told("-i", "east", "packet", "exports")] == [last]


def test_a_hook_that_is_no_command_is_named_after_the_packets_are_whole(pair: Pair) -> None:
    said("-i", "east", "config", "set", "packets.hook", "'a")
    pair.write(1)
    with pytest.raises(ConfigurationError, match="is no command"):
        said("-i", "east", "packet", "export")
    assert len(outbox(pair)) == 1


def test_a_hook_that_fails_does_not_hide_why_the_export_ended(pair: Pair) -> None:
    said("-i", "east", "config", "set", "packets.hook", "false")
    pair.write(1)
    failpoint.arm("packet.write:2:errno=ENOSPC")
    with pytest.raises(DiskFullError):
        said("-i", "east", "packet", "export")
    failpoint.disarm()
    with pytest.raises(ConfigurationError, match="ended with 1"):
        said("-i", "east", "packet", "export")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("packet", "export", "--file", "a", "--outbox", "b"), UsageError),
        (("packet", "export", "--max-bytes", "5"), UsageError),
        (("packet", "export", "--outbox", "a", "--outbox", "b"), UsageError),
        (("packet", "export", "--file", "a", "--file", "b"), UsageError),
        (("peer", "add", "off", "--packets", "--outbox", "a", "--outbox", "b"), UsageError),
        (("packet", "export", "--to", "nobody"), NotFoundError),
        (("packet", "show", "link"), UsageError),
        (("packet", "import", "link"), UsageError),
        (("packet", "export", "--outbox", "nowhere"), NotFoundError),
        (("packet", "export", "--encrypt"), NotFoundError),
        (("packet", "recover", "--to", "west"), UsageError),
        (("packet", "recover", "--to", "west", "--number", "1", "--receipt", "x"), UsageError),
        (("packet", "recover", "--to", "west", "--number", "9"), NotFoundError),
        (("packet", "show", "."), UsageError),
        (("packet", "import", "nowhere"), NotFoundError),
        (("peer", "add", "off"), UsageError),
        (("peer", "add", "off", "127.0.0.1:7430", "--packets"), UsageError),
        (("peer", "add", "west", "127.0.0.1:7430"), AlreadyExistsError),
        (("source", "start"), UsageError),
        (("source", "start", "--peer", "west"), UsageError),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else "",
)
def test_refused(pair: Pair, words: tuple[str, ...], error: type[Exception]) -> None:
    pair.write(1)
    Path("link").symlink_to("packet")
    with pytest.raises(error) as caught:
        said("-i", "east", *words)
    assert "Seed it" not in caught.value.do or "nobody" not in words  # type: ignore[attr-defined]
    assert caught.value.do  # type: ignore[attr-defined]
    assert not (pair.primary.path / "packets" / "outbox").exists() or outbox(pair) == []


def test_a_list_tells_what_cannot_be_read_and_goes_on(pair: Pair) -> None:
    pair.write(1)
    said("-i", "east", "packet", "export")
    (path,) = outbox(pair)
    path.with_name("a.packet").write_bytes(b"a")
    listed = told("-i", "east", "packet", "list")
    assert [one.get("error", "") != "" for one in listed] == [True, False]
    path.unlink()
    os.unlink(path.with_name("a.packet"))
    assert said("-i", "east", "packet", "list") == "no packet is there\n"


def test_each_peer_has_its_own_outbox_and_inbox(pair: Pair) -> None:
    """Where two sites are served by two disks."""
    for name in ("to-west", "to-off", "from-west"):
        (pair.directory / name).mkdir()
    west = ("peer", "add", "west", "--packets", "--replace")
    said("-i", "east", *west, "--outbox", "to-west", "--inbox", "from-west")
    said("-i", "east", "peer", "add", "off", "--packets", "--outbox", "to-off")
    said("-i", "east", "epochs", "set", "off", "2", "--yes")
    listed = said("-i", "east", "peer", "list")
    assert f"outbox {pair.directory / 'to-west'}, inbox {pair.directory / 'from-west'}" in listed
    assert told("-i", "east", "peer", "list")[1]["outbox"] == str(pair.directory / "to-off")
    pair.write(1)
    with pytest.raises(UsageError, match="west, off have not the same outbox"):
        said("-i", "east", "packet", "export", "--to", "west", "--to", "off")
    said("-i", "east", "packet", "export")
    assert os.listdir("to-west") == ["east.west.000001.packet"]
    assert os.listdir("to-off") == ["east.off.000002.packet"]
    assert not (pair.primary.path / "packets" / "outbox").exists()
    said("-i", "west", "packet", "import", "to-west")
    said("-i", "west", "packet", "export", "--to", "east", "--receipt", "--outbox", "from-west")
    assert len(told("-i", "east", "packet", "list")) == 3
    assert told("-i", "east", "packet", "import")["heard"] == ["west"]
    # What is not said again stays; what is empty is that of the settings.
    said("-i", "east", *west, "--inbox", "")
    assert "inbox" not in (entry := told("-i", "east", "peer", "list")[1])
    assert entry["outbox"] == str(pair.directory / "to-west")
    with pytest.raises(AlreadyExistsError, match="with other directories"):
        said("-i", "east", *west[:-1], "--outbox", "from-west")
    with pytest.raises(NotFoundError, match="no such directory"):
        said("-i", "east", *west, "--outbox", "nowhere")


def test_an_outbox_that_is_not_there_stops_its_peer_alone(pair: Pair) -> None:
    """A disk that is not mounted: nothing is written below its mount point, and nothing counts as exported."""
    disk = pair.directory / "disk"
    disk.mkdir()
    said("-i", "east", "peer", "add", "west", "--packets", "--replace", "--outbox", "disk", "--inbox", "disk")
    said("-i", "east", "peer", "add", "off", "--packets")
    said("-i", "east", "epochs", "set", "off", "2", "--yes")
    pair.write(1)
    disk.rmdir()
    with pytest.raises(NotFoundError, match="the outbox of west is not there") as caught:
        said("-i", "east", "packet", "export")
    assert caught.value.where == str(disk)
    assert not disk.exists()
    assert [one["targets"] for one in told("-i", "east", "packet", "exports")] == [["off"]]
    done = CliRunner().invoke(root, ["-i", "east", "packet", "import"])
    assert (done.exit_code, done.stderr) == (0, f"not there now: the inbox {disk}\n")


def test_several_errors_name_the_instance_as_it_was_named(pair: Pair) -> None:
    directory = pair.directory / "in"
    directory.mkdir()
    for name in ("y.packet", "z.packet"):
        (directory / name).write_bytes(b"no packet")
    said("-i", "east", "packet", "export", "--outbox", str(directory))
    certificate = [("certificate", "init", "ca"), ("certificate", "issue", "west", "--ca", "ca", "-i", "west")]
    pair.write(1)
    said("-i", "east", "packet", "export", "--outbox", str(directory))
    for words in certificate:
        said(*words)
    (directory / "x.packet").write_bytes(b"no packet")
    done = CliRunner().invoke(root, ["-i", "west", "packet", "import", str(directory)])
    told_of = [line for line in done.stderr.splitlines() if "is not signed" in line]
    assert "replicate -i west config set packets.unsigned accept" in told_of[0]
    assert "no packet for this instance" not in done.stdout


def test_status_tells_of_packets(pair: Pair) -> None:
    last = pair.write(3)
    words = said("-i", "east", "status")
    assert "peer west: by packets, exported up to 2, confirmed up to 0" in words
    assert "not exported 3" in words
    assert "NO_PEER" not in words
    assert "source-west" not in words
    said("-i", "east", "packet", "export")
    said("-i", "east", "config", "set", "packets.confirm_within_s", "0.001")
    assert "PACKET_UNCONFIRMED" in said("-i", "east", "status")
    found = told("-i", "east", "status")["packets"]
    assert [(one["name"], one["exported_seqno"], one["backlog"]) for one in found] == [("west", last, 0)]


def test_a_site_without_a_line_misses_no_daemon(pair: Pair) -> None:
    pair.write(1)
    said("-i", "east", "packet", "export", "--outbox", str(pair.directory))
    said("-i", "west", "packet", "import", str(pair.directory))
    done = CliRunner().invoke(root, ["-i", "west", "status"])
    assert done.exit_code == 0
    assert "bottleneck: not known: packets come here, and no line leads here" in done.stdout
    assert "does not run" not in done.stdout


def test_a_peer_may_get_a_line_later(pair: Pair) -> None:
    said("-i", "east", "peer", "add", "west", "127.0.0.1:7430", "--replace")
    assert "127.0.0.1:7430" in said("-i", "east", "peer", "list")
    last = pair.write(2)
    assert f"transactions 3 to {last}" in said("-i", "east", "packet", "export", "--to", "west")
    with pytest.raises(UsageError, match="no peer gets packets"):
        said("-i", "east", "packet", "export")
    said("-i", "east", "peer", "remove", "west")
    assert told("-i", "east", "epochs")["replicas"][1:] == []


def test_two_outboxes_are_refused_and_nothing_is_made(pair: Pair) -> None:
    """The last one got all, silently."""
    pair.write(1)
    for name in ("a", "b"):
        (pair.directory / name).mkdir()
    with pytest.raises(UsageError, match="--outbox is given 2 times"):
        said("-i", "east", "packet", "export", "--outbox", "a", "--outbox", "b")
    assert not [*(pair.directory / "a").iterdir(), *(pair.directory / "b").iterdir()]
    assert told("-i", "east", "packet", "exports") == []
    said("-i", "east", "packet", "export", "--outbox", "b")
    assert len([*(pair.directory / "b").iterdir()]) == 1


def test_all_packets_are_verified_and_the_worst_gives_the_code(pair: Pair) -> None:
    for _ in range(4):
        pair.write(2)
        said("-i", "east", "packet", "export")
    first, second, third, last = outbox(pair)
    for path, place in ((first, 200), (third, 300)):
        data = bytearray(path.read_bytes())
        data[place] ^= 1
        path.write_bytes(data)
    done = CliRunner().invoke(root, ["packet", "verify", str(first.parent)])
    assert isinstance(done.exception, DamagedError)
    assert done.exception.exit_code == 65
    assert done.exception.where.startswith(f"{first}, ")
    lines = done.output.splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in lines] == ["DAMAGED", "whole", "DAMAGED", "whole"]
    # One that is for another is not well with -i, and less bad than a damaged one, wherever it stands.
    third.write_bytes(second.read_bytes())
    done = CliRunner().invoke(root, ["--json", "-i", "east", "packet", "verify", str(last), str(first)])
    assert isinstance(done.exception, DamagedError)
    assert [one["code"] for one in json.loads(done.output)] == ["WRONG_INSTANCE", "DAMAGED"]
    done = CliRunner().invoke(root, ["-i", "east", "packet", "verify", str(last), str(second)])
    assert isinstance(done.exception, WrongInstanceError)
    assert done.exception.where == str(last)


def test_what_a_packet_brings_is_shown_and_what_of_it_is_here(pair: Pair) -> None:
    last = pair.write(2)
    said("-i", "east", "packet", "export")
    (path,) = outbox(pair)
    shown = said("-i", "west", "packet", "show", str(path), "--transactions").splitlines()
    heads = [line for line in shown if line.endswith("  NOT HERE")]
    assert [int(line.split()[0]) for line in heads] == [last - 1, last]
    assert shown[-1] == "2 of 2 are not on west"
    assert "here" not in said("packet", "show", str(path), "--transactions").lower().split("bytes", 1)[1]
    said("-i", "west", "packet", "import", str(path))
    assert said("-i", "west", "packet", "show", str(path), "--transactions").endswith("0 of 2 are not on west\n")
    told_of = said("--json", "-i", "west", "packet", "show", str(path), "--transactions").splitlines()
    documents = [json.loads(line) for line in told_of]
    assert [(one["seqno"], one["is_here"]) for one in documents] == [(last - 1, True), (last, True)]
    assert documents[0]["changes"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedError):
        said("packet", "show", str(path), "--transactions")
