"""Debian's Prometheus: a server that scrapes what a test names, and promtool.

Guarantees: everything of it is below one directory, and it ends with the `with` block. A test that needs it, and does
not find it, is skipped by name.
Leaves to others: which alerts are right.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.ports import free_port
from tests.harness.waiting import PATIENCE_S, wait_until

SCRAPE_S = 0.5


def needs_prometheus() -> None:
    """Skip where it is not installed."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("Debian's package prometheus is not installed")


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


class PrometheusServer:
    """A server that runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **parameters: object) -> Any:
        """What the API answers; None while it does not."""
        query = urllib.parse.urlencode({name: str(value) for name, value in parameters.items()})
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError):
            return None

    def firing(self) -> set[str]:
        """The alerts that fire now."""
        found = self.get("alerts") or {"alerts": []}
        return {one["labels"]["alertname"] for one in found["alerts"] if one["state"] == "firing"}

    def errors(self) -> list[str]:
        """Why rules could not be evaluated."""
        found = self.get("rules") or {"groups": []}
        return [rule["lastError"] for group in found["groups"] for rule in group["rules"] if rule.get("lastError")]

    def samples(self, query: str, since_s: float, until_s: float) -> int:
        """How many samples an expression has had in that time."""
        found = self.get("query_range", query=query, start=since_s, end=until_s, step=1)
        return sum(len(one["values"]) for one in (found or {"result": []})["result"])


@contextmanager
def prometheus(directory: Path, targets: Mapping[str, int], rules: Sequence[Path]) -> Iterator[PrometheusServer]:
    """A server that scrapes each of `targets` (a port, by the name of its job)."""
    directory.mkdir()
    config = {
        "global": {"scrape_interval": f"{round(SCRAPE_S * 1000)}ms", "evaluation_interval": "500ms"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )  # fmt: skip
        try:
            server = PrometheusServer(address)
            wait_until(lambda: server.get("status/runtimeinfo") or process.poll() is not None, what="it serves")
            assert process.poll() is None, (directory / "log").read_text()
            yield server
        finally:
            process.kill()
            process.wait()
