"""daemon/figures.py, daemon/metrics_port.py: the page, who is served, and the port's limits."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from replicate.daemon import metrics_port as metrics_port
from replicate.daemon.figures import FIGURES, METRICS, page
from replicate.daemon.listening import listen
from replicate.daemon.metrics_port import CONNECTIONS_MAX, DEADLINE_S, MetricsServer, Watched
from replicate.errors import AlreadyExistsError, ConfigurationError
from replicate.settings.load import Config
from replicate.settings.table import TlsConfig
from tests.harness.certificates import Authority
from tests.harness.servers import ListLog

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_names_say_their_unit_and_none_is_there_twice() -> None:
    assert len(METRICS) > 30
    units = "seconds|bytes|ratio|seqno|transactions|segments|state|errno|total|rows|ranges|entries|indexes"
    assert len(METRICS) == sum(bool(figure.metric) for figure in FIGURES.values())
    for name, metric in METRICS.items():
        assert re.fullmatch(rf"dualsite_[a-z_]+_({units})", name), name
        assert name.endswith(f"_{metric.unit}"), name
        assert (metric.kind == "counter") == name.endswith("_total")
        assert re.fullmatch(r"[A-Z0-9].*\.", metric.help)


def test_the_page_is_prometheus_text_read_at_the_moment() -> None:
    lag = 1.0

    def figures() -> dict[str, Any]:
        refused = {'A"B\\\n': 2, "C": 1}
        return {"lag_s": lag, "round_trip_s": None, "bytes_total": 2**40, "refused_connections": refused}

    def values() -> dict[tuple[str, str], float]:
        text = page("source", figures, {"daemon": "source", "peer": "west"}).decode()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                assert (sample.labels["daemon"], sample.labels["peer"]) == ("source", "west")
                found[sample.name, sample.labels.get("reason", "")] = sample.value
        return found

    assert values() == {
        ("dualsite_lag_seconds", ""): 1.0,
        ("dualsite_bytes_total", ""): 2.0**40,
        ("dualsite_refused_connections_total", 'A"B\\\n'): 2.0,
        ("dualsite_refused_connections_total", "C"): 1.0,
    }
    lag = 7.5
    assert values()["dualsite_lag_seconds", ""] == 7.5
    with pytest.raises(KeyError):
        page("source", lambda: {"invented": 1}, {})


class Scraped:
    """A port of a daemon that a test pretends to be."""

    def __init__(self, directory: Path) -> None:
        self.log = ListLog()
        self.why_not = ""
        self.figures: Callable[[], dict[str, Any]] = lambda: {"lag_s": 3.0}
        self.server = MetricsServer(
            Watched(
                lambda: self.figures(),
                lambda: self.why_not,
                {"daemon": "source", "peer": "west"},
                directory,
                1000,
                TlsConfig(),
                cast(Any, self.log),
            )
        )
        self.port = 0

    async def open(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(self, request: bytes = GET) -> tuple[int, str]:
        async with await self.open() as stream:
            await stream.send_all(request)
            return await read_answer(stream)

    async def get(self, path: str) -> tuple[int, str]:
        return await self.ask(f"GET {path} HTTP/1.1\r\n\r\n".encode())


async def read_answer(stream: trio.SocketStream) -> tuple[int, str]:
    data = b""
    while more := await stream.receive_some():
        data += more
    head, _, body = data.decode().partition("\r\n\r\n")
    return (int(head.split()[1]) if head else 0), body


@asynccontextmanager
async def scraped(directory: Path) -> AsyncIterator[Scraped]:
    made = Scraped(directory)
    listeners, address = await listen("127.0.0.1:0", where="source.metrics_listen")
    made.port = address.port
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.server.run, listeners)
        with trio.fail_after(30):
            yield made
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_three_pages(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / f"{1:020d}.journal").write_bytes(b"x" * 8192)
    async with scraped(tmp_path) as daemon:
        status, text = await daemon.get("/metrics")
        assert status == 200
        found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert found["dualsite_lag_seconds"] == 3.0
        assert (found["dualsite_journal_segments"], found["dualsite_journal_cap_bytes"]) == (1, 1000)
        assert found["dualsite_journal_bytes"] >= 8192
        assert found["dualsite_disk_free_bytes"] > 0
        assert found["dualsite_ready_state"] == 1
        assert await daemon.get("/readyz") == (200, "ready\n")
        assert await daemon.get("/livez") == (200, "alive\n")
        daemon.why_not = "waiting for a connection"
        assert await daemon.get("/readyz") == (503, "waiting for a connection\n")
        assert await daemon.get("/livez") == (200, "alive\n")
        assert "dualsite_ready_state{" in (await daemon.get("/metrics"))[1]
        assert (await daemon.get("/else"))[0] == 404
        assert (await daemon.ask(b"DELETE /metrics HTTP/1.1\r\n\r\n"))[0] == 405


@pytest.mark.trio
async def test_when_certificates_end(tmp_path: Path) -> None:
    Authority(tmp_path).files("east", days=30).rename(tmp_path / "tls")
    async with scraped(tmp_path) as daemon:
        found = {
            sample.labels["file"]: sample.value / 86_400
            for family in text_string_to_metric_families((await daemon.get("/metrics"))[1])
            for sample in family.samples
            if sample.name == "dualsite_certificate_expires_seconds"
        }
        assert found == {"certificate.pem": pytest.approx(30, abs=0.1), "ca.pem": pytest.approx(3550, abs=0.1)}
        (tmp_path / "tls" / "certificate.pem").write_text("no certificate")
        status, text = await daemon.get("/metrics")
        assert status == 200
        assert 'file="ca.pem"' in text
        assert 'file="certificate.pem"' not in text


@pytest.mark.trio
async def test_a_request_that_is_too_long_gets_its_answer_though_more_is_coming(tmp_path: Path) -> None:
    async with scraped(tmp_path) as daemon:
        assert (await daemon.ask(b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 100_000))[0] == 431


@pytest.mark.trio
async def test_a_figure_that_cannot_be_read_is_one_line_and_harms_nothing_else(tmp_path: Path) -> None:
    async with scraped(tmp_path) as daemon:
        well = daemon.figures
        daemon.figures = lambda: {"lag_s": 1 / 0}
        assert [(await daemon.get("/metrics"))[0] for _ in range(3)] == [500] * 3
        assert len(daemon.log.events("figures cannot be read")) == 1
        assert await daemon.get("/readyz") == (200, "ready\n")
        daemon.figures = well
        assert (await daemon.get("/metrics"))[0] == 200


@pytest.mark.trio
async def test_slow_scrapers_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: one more closes the one that has been here longest."""
    assert DEADLINE_S == 5.0
    monkeypatch.setattr(metrics_port, "DEADLINE_S", 3600.0)
    async with scraped(tmp_path) as daemon:
        silent = [await daemon.open() for _ in range(3 * CONNECTIONS_MAX)]
        for stream in silent[: 2 * CONNECTIONS_MAX]:
            assert await read_answer(stream) == (0, "")
        assert (await daemon.get("/livez"))[0] == 200
        assert await read_answer(silent[2 * CONNECTIONS_MAX]) == (0, "")
        for stream in silent:
            await stream.aclose()


@pytest.mark.trio
async def test_a_silent_scraper_ends_at_its_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "DEADLINE_S", 0.1)
    async with scraped(tmp_path) as daemon, await daemon.open() as silent:
        assert await read_answer(silent) == (0, "")


@pytest.mark.trio
async def test_a_disk_that_hangs_costs_only_its_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    hang = threading.Event()
    looks: list[Path] = []

    def hanging(directory: Path) -> None:
        looks.append(directory)
        hang.wait(200)

    monkeypatch.setattr(metrics_port, "DISK_PATIENCE_S", 0.05)
    monkeypatch.setattr(metrics_port, "journal_space", hanging)
    try:
        async with scraped(tmp_path) as daemon:
            for _ in range(3):
                status, text = await daemon.get("/metrics")
                assert status == 200
                assert "dualsite_lag_seconds{" in text
                assert "dualsite_disk_free_bytes" not in text
            assert len(looks) <= 1  # and so many threads hang
    finally:
        hang.set()


@pytest.mark.trio
async def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AlreadyExistsError, match=r"update\.metrics_listen") as caught:
            await listen(f"127.0.0.1:{port}", where="update.metrics_listen")
        assert caught.value.exit_code == 73


@pytest.mark.parametrize("section", ["source", "receiver", "update"])
@pytest.mark.parametrize(
    ("text", "named"),
    [("0.0.0.0:9743", "loopback"), ("192.0.2.1:9743", "loopback"), ("127.0.0.1", "no port"), ("x y", "HOST:PORT")],
)
def test_only_loopback_and_a_port(section: str, text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        Config().with_values({f"{section}.metrics_listen": text})
    assert f"{section}.metrics_listen" in str(caught.value)
    for good in ("", "127.0.0.1:0", "[::1]:9743", "localhost:9743"):
        Config().with_values({f"{section}.metrics_listen": good})
