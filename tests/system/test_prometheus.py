"""The alert rules and the dashboard against a pair that is really well, behind, paused, silent, cut, refused and dead.

A server scrapes the pair through all of it, with the rules' times shortened, and every panel's query is asked
of it. What the daemons have told in each state is then held, or goes on as it went, for half an hour in promtool, under
the rules as they are.
"""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from replicate.daemon.figures import METRICS
from replicate.instance.instance import Instance
from tests.deploy.test_demo_parts import load
from tests.harness.bad_street import BadStreet
from tests.harness.certificates import Authority
from tests.harness.checkout import ROOT
from tests.harness.ports import free_port
from tests.harness.prometheus import PrometheusServer, needs_prometheus, prometheus, promtool
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.together(6)]

RULES = ROOT / "deploy" / "alerts" / "dualsite.yml"
TIMES = 60
WAITS_TIMES = 150
"""What is measured in seconds (a lag, a silence) is shortened less than how long it must be so: a busy machine lags."""
HALF_AN_HOUR_S = 1740
EVALUATED_S = {"refused": 300}
"""What has happened once is an alert for a quarter of an hour."""
NAMES = ("source-secondary", "receiver", "update")
COUNTS = re.compile(r"_total$")
GOING_ON = re.compile(r"last_contact|_lag_|_backlog_|_age_|compared_seconds")
"""What goes on as it went, in promtool; all else is held as it was."""
HEARTBEAT_S = 0.5
SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 1048576
    [source]
    heartbeat_period_s = {3}
    dead_after_s = 300.0
    hard_period_s = 0.1
    soft_period_s = 0.3
    patrol_percent = 20.0
    patrol_round_s = 1.0
    metrics_listen = "127.0.0.1:{0}"
    [receiver]
    pool_bytes = 4194304
    heartbeat_period_s = {3}
    dead_after_s = 300.0
    metrics_listen = "127.0.0.1:{1}"
    [update]
    metrics_listen = "127.0.0.1:{2}"
"""

Page = dict[str, float]
"""By a sample's name with its labels."""


@dataclass
class Told:
    """What each daemon has told in a state, every second; nothing where it did not answer."""

    seconds: float = 0.0
    pages: list[dict[str, Page]] = field(default_factory=list)

    @property
    def first(self) -> dict[str, Page]:
        return self.pages[0]

    @property
    def last(self) -> dict[str, Page]:
        return self.pages[-1]

    def goes_on(self, name: str, key: str) -> bool:
        """Whether a figure never fell, and grew in the end, by more than a silence between two heartbeats does: pages
        that are taken every 1.1 s show one that grows by 0.1 s from each to the next. What is told a second later grows
        once."""
        values = [page[name][key] for page in self.pages if key in page[name]]
        never_fell = all(before <= after for before, after in pairwise(values))
        return never_fell and values[-1] - values[-3:][0] > 1.5 * HEARTBEAT_S


@dataclass
class Walk:
    """The pair, the server, and what was seen."""

    street: BadStreet
    server: PrometheusServer
    ports: dict[str, int]
    began_s: float
    told: dict[str, Told] = field(default_factory=dict)

    def page(self, name: str) -> Page:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/metrics", timeout=2) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return {}
        return {
            f"{sample.name}{json.dumps(sample.labels, sort_keys=True)}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def pages(self) -> dict[str, Page]:
        return {name: self.page(name) for name in NAMES}

    def fires(self, state: str, *alerts: str) -> None:
        """Wait until the server fires these, and keep what is told meanwhile."""
        began_s, pages = time.monotonic(), [self.pages()]

        def is_over() -> bool:
            if time.monotonic() - began_s > 1.1 * len(pages):
                pages.append(self.pages())
            return len(pages) > 4 and {*alerts} <= self.server.firing()

        wait_until(is_over, what=f"{state}: {alerts} fire, not {self.server.firing()}")
        pages.append(self.pages())
        self.told[state] = Told(time.monotonic() - began_s, pages)


def shortened(directory: Path) -> Path:
    """The rules, with every time of theirs shortened; days are as they were."""
    text = RULES.read_text(encoding="utf-8")
    text = re.sub(r"\b(for: |offset |\[)(\d+)m\b", lambda m: f"{m[1]}{int(m[2]) * 60_000 // WAITS_TIMES}ms", text)
    text = re.sub(r"_seconds(\{[^}]*\})? > (60|120)\b", lambda m: f"_seconds{m[1] or ''} > {int(m[2]) // TIMES}", text)
    text = text.replace("> 10000 and", "> 100 and")
    path = directory / "shortened.yml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """Through all states, once."""
    needs_prometheus()
    directory = tmp_path_factory.mktemp("prometheus")
    ports = {name: free_port() for name in NAMES}
    street = BadStreet(directory, settings=SETTINGS.format(*ports.values(), HEARTBEAT_S))
    targets = {f"dualsite-{name}": port for name, port in ports.items()}
    try:
        street.build()
        authority = Authority(directory)
        for path in (street.primary, street.secondary):
            authority.install(Instance.open(path))
        with prometheus(directory / "server", targets, [shortened(directory)]) as server:
            street.start()
            made = Walk(street, server, ports, time.time())
            go_through(made)
            yield made
    finally:
        street.close()


def go_through(walk: Walk) -> None:
    street, server = walk.street, walk.server
    # Well: all is told, and nothing has to fire for long.
    street.applied(street.insert(20))
    street.on(street.secondary, "compare", "--with", street.primary)
    wait_until(lambda: "dualsite_patrol_verified_rows" in "".join(walk.page("receiver")), what="a round of the patrol")
    wait_until(lambda: "dualsite_round_trip_seconds" in "".join(walk.page("source-secondary")))
    wait_until(lambda: "dualsite_compared_equal_state" in "".join(walk.page("source-secondary")))
    walk.fires("well")
    # Behind: nothing is applied, and more is written.
    street.kill(street.secondary, "update", 19)
    street.insert(10_200)
    writer = street.writer(1, pause_s=0.01)
    walk.fires("behind", "DualsiteLag", "DualsiteBacklogGrowing", "DualsiteDaemonDown")
    writer.kill()
    writer.wait()
    street.kill(street.secondary, "update", 18)
    street.applied(street.insert())
    # Paused: the receive pool is full.
    street.on(street.secondary, "update", "stop")
    street.insert(60, 100_000)
    wait_until(lambda: is_told(walk.page("source-secondary"), "xoff_state", 1.0), what="XOFF")
    walk.fires("paused", "DualsiteUpdateStopped", "DualsiteLag", "DualsiteDaemonDown")
    street.start_update()
    street.applied(street.insert())
    # Silent: the connection stands, and nothing comes over it.
    wait_until(lambda: not server.firing() & {"DualsiteLag", "DualsiteDaemonDown"})
    street.network.part()
    walk.fires("silent", "DualsiteSilent", "DualsitePrimaryDown")
    # Cut: no connection comes about.
    street.network.is_refusing = True
    for line in street.network.lines:
        line.close(reset=True)
    walk.fires("cut", "DualsiteSecondaryUnreachable", "DualsitePrimaryDown")
    street.network.is_refusing = False
    street.network.heal()
    street.applied(street.insert())
    # Refused: a stranger.
    with socket.create_connection(("127.0.0.1", street.port()), timeout=60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 400)
        walk.fires("refused", "DualsiteRefused")
    # Dead: the Source Server is killed.
    street.kill(street.primary, "source-secondary")
    walk.fires("dead", "DualsiteDaemonDown", "DualsitePrimaryDown")


def is_told(page: Page, name: str, value: float) -> bool:
    return any(key.startswith(f"dualsite_{name}{{") and found == value for key, found in page.items())


def test_the_server_can_evaluate_each_rule(walk: Walk) -> None:
    assert walk.server.errors() == []
    found = walk.server.get("rules")
    rules = [rule["name"] for group in found["groups"] for rule in group["rules"]]
    assert rules == [rule["alert"] for rule in the_rules()]


def test_every_panels_query_gives_data(walk: Walk) -> None:
    now_s = time.time()
    without = []
    for panel in the_panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5s").replace("$instance", ".*")
            if not walk.server.samples(query, walk.began_s, now_s):
                without.append((panel["title"], query))
    assert without == []


def the_rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def the_panels() -> list[dict[str, Any]]:
    document = json.loads((ROOT / "deploy" / "grafana" / "dualsite.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


# Under the rules as they are.

ALL_OF_STATE: dict[str, set[str]] = {
    "well": set(),
    "behind": {"DualsiteLag", "DualsiteBacklogGrowing", "DualsiteDaemonDown", "DualsiteUpdateStopped"},
    "paused": {"DualsiteLag", "DualsiteUpdateStopped", "DualsiteDaemonDown"},
    "silent": {"DualsiteSilent", "DualsitePrimaryDown", "DualsiteLag"},
    "cut": {"DualsiteSecondaryUnreachable", "DualsitePrimaryDown", "DualsiteLag"},
    "refused": {"DualsiteRefused"},
    "dead": {"DualsiteDaemonDown", "DualsitePrimaryDown", "DualsiteLag"},
}


ELSEWHERE = {
    "dualsite_partition_here_state": ("receiver", 'partition="sales"'),
    "dualsite_lost_total": ("update", 'daemon="update"'),
    "dualsite_schema_fence_seconds": ("update", 'daemon="update"'),
}
"""What only others tell, a secondary with some partitions and a supplier: by whom, and its labels."""


def series(told: Told, changes: dict[str, float]) -> list[dict[str, str]]:
    """What promtool is given: `changes` are values of metrics that are as well as never there; of a counter, so much
    more every half a minute."""
    made, changed = [], set()
    for name in NAMES:
        labels = f'job="dualsite-{name}",instance="{name}"'
        last = told.last[name]
        made.append({"series": f"up{{{labels}}}", "values": f"{int(bool(last))}x60"})
        for key, value in last.items():
            metric, _, found = key.partition("{")
            own = ",".join(f"{label}={json.dumps(text)}" for label, text in json.loads(f"{{{found}").items())
            begin, step = value, 0.0
            counts = COUNTS.search(metric) or (GOING_ON.search(metric) and told.goes_on(name, key))
            if counts and key in told.first[name]:
                step = 30 * (value - told.first[name][key]) / told.seconds
            if metric in changes:
                begin, step = changes[metric], 0.0
                changed.add(metric)
            sign = "-" if step < 0 else "+"
            made.append({"series": f"{metric}{{{labels},{own}}}", "values": f"{begin:.6f}{sign}{abs(step):.6f}x60"})
    for metric in (changes.keys() - changed) & ELSEWHERE.keys():
        name, own = ELSEWHERE[metric]
        labels = f'job="dualsite-{name}",instance="{name}",{own}'
        more = "0+" if COUNTS.search(metric) else ""
        made.append({"series": f"{metric}{{{labels}}}", "values": f"{more}{changes[metric]:.6f}x60"})
        changed.add(metric)
    assert changed == changes.keys(), "the daemons tell no such figure"
    return made


def promtools_word(
    directory: Path, walk: Walk, state: str, wanted: set[str], changes: dict[str, float] | None = None
) -> str:
    """ "" when exactly `wanted` fire after half an hour; else what promtool says."""
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": series(walk.told[state], changes or {}),
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{EVALUATED_S.get(state, HALF_AN_HOUR_S)}s",
                        "exp_samples": [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(wanted)],
                    }
                ],
            }
        ],
    }
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("state", ALL_OF_STATE)
def test_in_each_state_those_alerts_fire_and_no_others(walk: Walk, state: str, tmp_path: Path) -> None:
    assert promtools_word(tmp_path, walk, state, ALL_OF_STATE[state]) == ""


@pytest.mark.parametrize(
    ("alert", "metric", "value"),
    [
        ("DualsiteJournalNearCap", "journal_cap_bytes", 1.0),
        ("DualsiteDiskFilling", "disk_fill_ratio", 0.86),
        ("DualsitePartitionWaits", "partition_here_state", 0.0),
        ("DualsiteValuesLost", "lost_total", 1.0),
        ("DualsiteSchemaFenceLasts", "schema_fence_seconds", 301.0),
        ("DualsiteCertificateExpires", "certificate_expires_seconds", 13 * 86_400.0),
        ("DualsiteDifferent", "compared_equal_state", 0.0),
        ("DualsiteDiverged", "patrol_different_ranges", 1.0),
        ("DualsiteIndexDamaged", "damaged_indexes", 1.0),
        ("DualsiteCompareDue", "compared_seconds", 16 * 86_400.0),
        ("DualsiteFatal", "fatal_errno", 28.0),
    ],
)
def test_each_of_the_others_fires_by_its_figure_alone(
    walk: Walk, alert: str, metric: str, value: float, tmp_path: Path
) -> None:
    assert promtools_word(tmp_path, walk, "well", {alert}, {f"dualsite_{metric}": value}) == ""


def test_no_rule_is_left_out() -> None:
    tried = set().union(*ALL_OF_STATE.values()) | {
        alert
        for mark in test_each_of_the_others_fires_by_its_figure_alone.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
        for alert, _, _ in mark.args[1]
    }
    assert tried == {rule["alert"] for rule in the_rules()}


def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    needs_prometheus()
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_is_fresh_and_has_every_metric() -> None:
    write_dashboard = load("write_dashboard")
    text = (ROOT / "deploy" / "grafana" / "dualsite.json").read_text(encoding="utf-8")
    assert text == write_dashboard.text(), "python deploy/write_dashboard.py"
    shown = set(re.findall(r"dualsite_[a-z_]+", text))
    assert shown == METRICS.keys()
    panels = the_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] and panel["targets"] for panel in panels)
