"""Active and passive Source Servers as processes: the commands of the manual, kills, a dead peer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.manual import chapter, commands, section
from tests.harness.ports import free_port
from tests.harness.street import QUICK, Street
from tests.harness.waiting import wait_until

SETTINGS = QUICK

pytestmark = pytest.mark.slow


def state(street: Street) -> str:
    return str(street.daemon(street.primary, "source-secondary")["facts"].get("state"))


def findings(street: Street) -> list[str]:
    return [finding["code"] for finding in street.status(street.primary)["findings"]]


def test_the_commands_of_the_manual(street: Street) -> None:
    """Each line of the section is run as it stands, but for the instance's path and the port."""
    port = free_port()
    lines = [
        line.replace("-i primary", f"-i {street.primary}").replace(":7431", f":{port}").split()[1:]
        for line in commands(section(chapter("services"), "Active and passive"))
    ]
    street.prove_equal()
    deactivate, status, activate, stop, start, moved = lines
    said = street.run(*deactivate).stdout
    assert "source-secondary: passive; the journal is kept for it" in said
    assert "  mode                     passive\n" in street.run(*status).stdout  # at once
    assert "source-secondary: passive already" in street.run(*deactivate).stdout
    assert {"PEER_PASSIVE"} == {code for code in findings(street) if code.startswith("PEER")}
    assert "peer secondary: passive" in street.on(street.primary, "status", check=False).stdout
    waiting = street.write("INSERT INTO audit VALUES ('asleep', 1)")  # applications go on
    assert street.last_seqno(street.secondary) < waiting
    assert "source-secondary: active; " in street.run(*activate).stdout
    assert "  mode                     active\n" in street.run(*status).stdout
    assert "source-secondary: active already" in street.run(*activate).stdout
    street.prove_equal()
    refused = street.run(*moved, check=False)
    assert (refused.returncode, "source deactivate --peer secondary" in refused.stderr) == (73, True)
    # The peer moves while the Source Server is down, and comes back passive.
    street.run(*stop)
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    started = street.run(*start).stdout
    assert "passive" in started
    assert street.run(*start, check=False).returncode == 73
    street.start_receiver(f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in street.run(*moved).stdout
    street.prove_equal()


def test_killed_it_comes_back_in_its_mode_and_a_dead_peer_is_tried_for_ever(street: Street) -> None:
    street.on(street.primary, "source", "deactivate")
    street.kill(street.primary, "source-secondary")
    street.write("INSERT INTO audit VALUES ('killed', 1)")
    noted = json.loads(street.on(street.primary, "--json", "source", "deactivate").stdout)
    assert (noted["mode"], noted["is_running"]) == ("passive", False)
    street.start_source()  # no option says so
    wait_until(lambda: street.daemon(street.primary, "source-secondary")["facts"].get("mode") == "passive")
    street.on(street.secondary, "receiver", "stop", "--keep-update")
    address = street.status(street.primary)["peers"][0]["address"]
    for _ in range(2):
        street.on(street.primary, "source", "activate")
    wait_until(lambda: "PEER_NOT_CONNECTED" in findings(street), what="the dead peer is told")
    wait_until(lambda: state(street) == "waiting for a connection", what="it tries")
    street.on(street.primary, "source", "deactivate")
    wait_until(lambda: state(street) == "passive", what="it sleeps")
    street.kill(street.primary, "source-secondary")
    street.on(street.primary, "source", "activate")  # noted, for the next start
    street.start_receiver(address)
    street.start_source()
    street.prove_equal()
    writer = street.writer(3)
    try:
        for _ in range(3):
            street.on(street.primary, "source", "deactivate")
            street.kill(street.primary, "source-secondary")
            street.start_source()
            street.on(street.primary, "source", "activate")
            wait_until(lambda: state(street) == "sending", what="it sends again")
    finally:
        writer.kill()
        writer.communicate()
    street.prove_equal()


def test_daemons_follow_the_role(street: Street) -> None:
    """The commands of the section, after the planned change that stands before it."""
    last = street.prove_equal()
    wait_until(lambda: street.last_seqno(street.secondary) == last, what="all is there")
    street.on(street.primary, "source", "stop")
    street.on(street.primary, "demote")
    for daemon in ("receiver", "update"):
        street.on(street.secondary, daemon, "stop")
    street.on(street.secondary, "promote", "--expect", str(last))
    street.on(street.secondary, "peer", "add", "primary", "127.0.0.1:1")  # what was its source
    for line in commands(section(chapter("roles"), "Daemons follow the role")):
        words = line.replace("-i ", f"-i {street.directory}/").split()[1:]
        street.run(*words, *(["--listen", "127.0.0.1:0"] if "receiver" in words else []))
    standing_by = "standing by: this instance is primary"
    for daemon in ("receiver", "update"):
        wait_until(lambda name=daemon: street.daemon(street.secondary, name)["text"] == standing_by, what=standing_by)
    wait_until(lambda: state(street) == "passive", what="the source sleeps")
    assert [code for code in findings(street) if code.startswith("PEER") or "source" in code] == []
    # Both are primary, by force: the one that was superseded gives way, by name, and no log is filled.
    street.on(street.primary, "source", "stop")
    for instance in (street.primary, street.secondary):
        assert street.on(instance, "update", "status", check=False).returncode == int(instance == street.primary)
    street.on(street.primary, "promote", "--force")
    listen = street.daemon(street.secondary, "receiver")["facts"]["listen"]
    street.on(street.primary, "peer", "add", "secondary", listen, "--replace")
    street.start_source()
    wait_until(lambda: "FENCED" in findings(street), what="it gives way to the one that took over")
    wait_until(lambda: state(street) == "passive", what="its source sleeps again")
    told = [line for line in street.log(street.primary, "source-secondary") if line.get("level") == "warning"]
    assert [line for line in told if "WRONG_ROLE" in str(line)] == []


def test_statistics_are_ordered_on_and_off_while_daemons_run_and_a_start_goes_by_the_settings(street: Street) -> None:
    def lines(instance: Path, daemon: str) -> list[dict[str, object]]:
        return [line for line in street.log(instance, daemon) if line["event"] == "statistics"]

    assert not lines(street.secondary, "update")  # every 300 s
    said = street.on(street.secondary, "statistics", "on", "--every", "0.2").stdout
    assert said == "receiver: statistics every 0.2 s\nupdate: statistics every 0.2 s\n"
    wait_until(lambda: len(lines(street.secondary, "update")) > 2 and len(lines(street.secondary, "receiver")) > 2)
    assert json.loads(street.on(street.primary, "--json", "statistics", "on").stdout) == {
        "source-secondary": {"statistics": True, "period_s": 300.0}
    }
    assert "no statistics" in street.on(street.secondary, "statistics", "off", "--daemon", "update").stdout
    wait_until(lambda: street.daemon(street.secondary, "update")["facts"].get("statistics_period_s", 0) is None)
    wait_until(lambda: street.daemon(street.secondary, "receiver")["facts"].get("statistics_period_s") == 0.2)
    line = lines(street.primary, "source-secondary")[-1]
    assert {"mode", "last_acknowledged_seqno", "last_applied_seqno"} <= line.keys()
    street.on(street.secondary, "update", "stop")
    street.start_update()
    wait_until(lambda: street.daemon(street.secondary, "update")["facts"].get("statistics_period_s") == 300.0)
    street.on(street.primary, "source", "stop")
    refused = street.on(street.primary, "statistics", "off", check=False)
    assert (refused.returncode, refused.stdout) == (1, "no daemon runs\n")


def test_a_receiver_server_of_a_primary_says_that_a_secondary_receives(street: Street) -> None:
    """Primary and secondary swapped: it stands by, on the port where the secondary's is to listen."""
    said = street.on(street.primary, "receiver", "start", "--listen", "127.0.0.1:0").stdout
    assert "standing by: this instance is primary" in said
    assert "a secondary receives" in said
    street.on(street.primary, "receiver", "stop")
    street.on(street.secondary, "receiver", "stop")
    assert "a secondary receives" not in street.on(street.secondary, "receiver", "start").stdout
