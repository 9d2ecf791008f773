"""status/report.py: what a finding says of a daemon that says nothing itself, and of a journal that has become long."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from replicate.errors import FilterError
from replicate.filters.encoding import DO
from replicate.model.start_command import start_command
from replicate.settings.load import SETTINGS, convert
from replicate.status.bottleneck import bottleneck
from replicate.status.report import DaemonReport, JournalReport, PeerReport, Status, findings
from replicate.status.text import daemon, lines
from tests.replicate.status.test_collect import JOURNAL, PEER, RECEIVING, REGION, RUNS


@pytest.mark.parametrize(
    ("says", "expected"), [("", "no source is connected"), ("waits", "no source is connected (waits)")]
)
def test_who_is_not_connected_says_why_if_it_does(says: str, expected: str) -> None:
    receiving = replace(RECEIVING, receiver=replace(RUNS, name="receiver", text=says), is_connected=False)
    (found,) = findings("secondary", JOURNAL, (REGION,), (), receiving)
    assert (found.code, found.text) == ("NO_SOURCE", expected)


FULL = replace(JOURNAL, cap_percent=96.0)
AWAY = replace(PEER, name="away", last_durable_seqno=10)


@pytest.mark.parametrize(
    ("journal", "peers", "expected"),
    [
        (FULL, (PEER,), "raise journal.cap_bytes"),
        (FULL, (PEER, AWAY), "it is kept for peer away: let it catch up, or remove it"),
        (FULL, (replace(AWAY, needs_seed=True),), "raise"),
        (FULL, (replace(PEER, seed_seqno=20),), "the seed that waits for peer west: finish it there, or give it up"),
        (FULL, (replace(PEER, seed_seqno=20), AWAY), "peer away"),
        (FULL, (replace(AWAY, seed_seqno=20),), "peer away"),
        (FULL, (replace(AWAY, seed_seqno=20, needs_seed=True),), "seed --forget away"),
        (
            replace(FULL, archive="/arc", archived_seqno=5, unarchived_bytes=9),
            (AWAY,),
            "the archive /arc: replicate -i INSTANCE archive",
        ),
        (replace(FULL, archive="/arc", archived_seqno=50, unarchived_bytes=9), (AWAY,), "peer away"),
        (replace(FULL, archive="/arc", archived_seqno=5), (), "raise"),
    ],
)
def test_a_full_journal_names_what_it_is_kept_for(
    journal: JournalReport, peers: tuple[PeerReport, ...], expected: str
) -> None:
    (found,) = [one for one in findings("primary", journal, (), peers, None) if one.code == "JOURNAL_FULL"]
    assert expected in found.do
    assert "raise journal.cap_bytes: replicate -i INSTANCE config set journal.cap_bytes " in found.do


@pytest.mark.parametrize(("cap", "doubled"), [(10 * 2**30, "20GiB"), (3 * 2**29, "3GiB"), (2**26 + 1, "129MiB")])
def test_a_size_in_a_command_is_as_one_would_type_it(cap: int, doubled: str) -> None:
    found = findings("primary", replace(FULL, cap_bytes=cap), (REGION,), (PEER,), None)[0]
    assert found.do.endswith(f"config set journal.cap_bytes {doubled}")
    assert convert(SETTINGS["journal.cap_bytes"], doubled, "test") >= 2 * cap
    assert start_command("receiver", {"receiver.pool_bytes": 2**27}).endswith("--set receiver.pool_bytes=128MiB")
    assert start_command("update", {"update.metrics_listen": "h:1"}).endswith("--set update.metrics_listen=h:1")


@pytest.mark.parametrize(
    ("error", "text", "do"),
    [
        (
            "UNREACHABLE: nobody answers [[::1]:7430]. There: replicate -i west status says how to start it",
            "no connection to west: UNREACHABLE: nobody answers [[::1]:7430]",
            "there: replicate -i west status says how to start it",
        ),
        ("CUT: it was cut [h:1]", "no connection to west: CUT: it was cut [h:1]", "there: replicate -i west receiver"),
        ("", "no connection to west (sending)", "there: replicate -i west receiver status; address h:1"),
    ],
)
def test_what_to_do_about_a_peer_that_is_not_connected_is_said_once(error: str, text: str, do: str) -> None:
    peer = replace(PEER, is_connected=False, last_error=error)
    (found,) = findings("primary", JOURNAL, (REGION,), (peer,), None)
    assert found.text == text
    assert found.do.startswith(do)
    assert (found.text + found.do).lower().count("there: ") == 1


@pytest.mark.parametrize(
    ("source", "sent"),
    [
        (RUNS, "sent 90; received 80, applied 70, durable 60"),
        (replace(RUNS, state="dead"), "sent 90 or more; as it last told: received 80, applied 70, durable 60"),
        (replace(RUNS, is_frozen=True), "sent 90 or more; as it last told: received 80, applied 70, durable 60"),
        (replace(RUNS, state="stopped"), "sent 90; as it last told: received 80, applied 70, durable 60"),
    ],
)
def test_what_a_source_server_that_was_killed_has_sent_is_not_told_as_a_fact(source: DaemonReport, sent: str) -> None:
    peer = replace(
        PEER, source=source, is_connected=source.is_running, last_sent_seqno=90, last_received_seqno=80,
        last_applied_seqno=70, last_durable_seqno=60, backlog=30,
    )  # fmt: skip
    status = Status("east", "primary", "/x", "n", "u", 1, 0, JOURNAL, (REGION,), (peer,), None, "", ())
    assert f"written 100, {sent}" in " ".join(" ".join(lines(status)).split())


@pytest.mark.parametrize(("percent", "do"), [(72.0, "make room there"), (96.0, "make room there; then start")])
def test_only_of_a_full_disk_daemons_have_stopped(percent: float, do: str) -> None:
    (found,) = findings("primary", replace(JOURNAL, disk_percent=percent), (REGION,), (PEER,), None)
    assert found.do.partition(" the daemons")[0] == do


def test_a_daemon_that_says_nothing_is_not_said_to_be_told_of_below() -> None:
    never = DaemonReport("source-x", "never started", 0, "")
    assert daemon(never, ["no connection to west: UNREACHABLE: nobody answers"]) == "never started"
    assert daemon(RUNS, ["no connection to west (sending)"]) == "serving (process 1), see below"


def test_a_region_that_waits_at_a_peer_is_a_finding_on_the_primary_too() -> None:
    (found,) = findings("primary", JOURNAL, (REGION,), (replace(PEER, region_waits=True),), None)
    assert (found.code, found.subject, found.is_wrong) == ("REGION_WAITS", "west", True)
    assert "replicate -i west status names it" in found.do


def test_a_passive_peer_is_told_on_a_primary_alone_and_as_that_alone() -> None:
    """An operator has said so, or the role has: neither is a lost connection."""
    peer = replace(PEER, source=replace(RUNS, is_passive=True), is_connected=False, backlog=5)
    (found,) = findings("primary", JOURNAL, (REGION,), (peer,), None)
    assert (found.code, found.subject, found.is_wrong) == ("PEER_PASSIVE", "west", True)
    assert found.do == "replicate -i INSTANCE source activate --peer west"
    assert bottleneck(JOURNAL, (peer,), None) == "the Source Server for west: it is passive"
    for state in ("never started", "stopped"):
        down = replace(peer, source=replace(peer.source, state=state))
        assert findings("secondary", JOURNAL, (REGION,), (down,), None) == ()
        codes = {one.code for one in findings("primary", JOURNAL, (REGION,), (down,), None)}
        assert codes == {"PEER_PASSIVE", "DAEMON_STOPPED"}
    killed = replace(peer, source=replace(peer.source, state="dead"))
    assert [one.code for one in findings("secondary", JOURNAL, (REGION,), (killed,), None)] == ["DAEMON_DEAD"]
    status = Status("east", "primary", "/x", "n", "u", 1, 0, JOURNAL, (REGION,), (peer,), None, "", ())
    assert "  peer west: passive, not heard yet; h:1" in list(lines(status, 120))


def test_a_dropped_peer_is_seeded_by_commands_that_are_not_refused() -> None:
    """Its Update Process runs as a rule, and a seed is refused while it does."""
    found = findings("primary", JOURNAL, (REGION,), (replace(PEER, needs_seed=True),), None)
    (dropped,) = (one for one in found if one.code == "PEER_DROPPED")
    assert dropped.do.endswith("replicate -i west update stop, then replicate -i west seed --restart")


FAILED = FilterError("the filter mask failed at transaction 7: it ended: exit code 1", do=DO)


def test_a_filter_that_has_failed_is_the_finding_and_not_the_connection_that_it_has_ended() -> None:
    receiver = replace(RUNS, name="receiver", filter_error=str(FAILED))
    (found,) = findings("secondary", JOURNAL, (REGION,), (), replace(RECEIVING, receiver=receiver, is_connected=False))
    assert (found.code, found.subject) == ("FILTER_FAILED", "receiver")
    assert found.text == "receiver: the filter mask failed at transaction 7: it ended: exit code 1"
    source = replace(RUNS, name="source-west", filter_error=str(FAILED))
    (found,) = findings("primary", JOURNAL, (REGION,), (replace(PEER, source=source, is_connected=False),), None)
    assert (found.code, found.subject) == ("FILTER_FAILED", "source-west")


def test_one_whose_server_is_stopped_is_no_finding() -> None:
    receiver = replace(RUNS, name="receiver", state="stopped", filter_error=str(FAILED))
    found = findings("secondary", JOURNAL, (REGION,), (), replace(RECEIVING, receiver=receiver))
    assert "FILTER_FAILED" not in {one.code for one in found}
