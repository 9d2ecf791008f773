"""The demonstration: two instances, three daemons, two writers; a cut, a silence, a kill; proof that nothing is lost.

What it is: a story told with the command `replicate` alone, as an operator would use it. deploy/demo starts it.
Guarantees: exit code 0 means that the connection was really cut in mid-stream, that both sides told of a line that had
gone silent, that the Update Process was really killed, and that both databases were equal in the end, by
`replicate compare` and by an independent row-by-row comparison.
However it ends, nothing of it is left running, and its directory is removed unless it is to be kept (it is kept, too,
when something failed).
Leaves to others: how replication works; it only uses what any user can.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sqlite3
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from demo_commands import APPLICATION, DemoFailedError, SignalledError, Workshop, is_alive, say, wait_until
from demo_compare import compare_files
from demo_failover import FailoverStory
from demo_relay import Relay

from replicate.model.start_command import start_command

WRITERS: Final = 2
RATE: Final = 120.0
"""Transactions a second of each writer: a busy small shop, and little enough for one slow core."""
CUT_AT: Final = 0.2
KILL_AT: Final = 0.6
"""Parts of the duration after which things go wrong."""
OUTAGE_S: Final = 1.5
STREAM_BYTES: Final = 8192
"""More than two servers need to make each other's acquaintance: the stream runs."""
HEARTBEAT_S: Final = 0.5
SILENCE_S: Final = 5.5
"""Before that neither side calls the other silent: a heartbeat, and five seconds of grace for a busy machine."""
SILENCE_TOLD_S: Final = 60.0
GONE_S: Final = 60.0
CATCH_UP_S: Final = 120.0
LINE_PERIOD_S: Final = 4.0
REDRAW_PERIOD_S: Final = 0.5


class Secondary:
    """The secondary's database as any reader may see it: standard SQLite, read-only, while it is being written."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=60.0)

    def look(self) -> int:
        """How many of the writers' transactions are there. Raises DemoFailedError if they are no gapless prefix."""
        self.connection.execute("BEGIN")
        try:
            done = self.connection.execute(
                "SELECT writer, count(*), max(number) FROM journal_of_work GROUP BY writer"
            ).fetchall()
            wrong = self.connection.execute(
                "SELECT purchase_id FROM purchase p WHERE total_cents <>"
                " (SELECT sum(quantity * price_cents) FROM purchase_line l WHERE l.purchase_id = p.purchase_id)"
                " ORDER BY purchase_id DESC LIMIT 1"
            ).fetchall()
        finally:
            self.connection.execute("ROLLBACK")
        for writer, count, last in done:
            if count != last:
                raise DemoFailedError(f"the secondary has {count} transactions of writer {writer}, the last is {last}")
        if wrong:
            raise DemoFailedError(f"the secondary shows a half-done purchase: {wrong[0][0]}")
        return sum(count for _, count, _ in done)


class Story:
    """The steps of the demonstration, in their order."""

    def __init__(self, shop: Workshop, duration_s: float) -> None:
        self.shop = shop
        self.duration_s = duration_s
        self.relay: Relay | None = None
        self.secondary: Secondary | None = None
        self.wrote_s = 0.0
        """How long the application has written before the secondary's eyes."""
        self._began = 0.0
        self._printed = 0.0
        self._on_terminal = sys.stdout.isatty()

    def tell(self) -> None:
        """Everything. Raises DemoFailedError, sqlite3.Error, OSError."""
        self._set_up_primary()
        self._set_up_secondary()
        self._began = time.monotonic()
        say(f"\nThe application writes for {self.duration_s:g} s; each line below also checks what a reader of the")
        say("secondary sees: whole transactions, in order, without a gap.")
        self._watch(self.duration_s * CUT_AT)
        self._cut_the_connection()
        self._silence_the_line()
        self._watch(self.duration_s * KILL_AT)
        self._kill_the_update_process()
        self._watch(self.duration_s)
        reports = self._finish_writers()
        self._catch_up(reports)
        self._stop()
        self._compare_files(reports)

    # Setting up.

    def _set_up_primary(self) -> None:
        say("1. The primary: an existing SQLite database becomes a region, in place, and the application goes on.")
        self.shop.application("create", "--plain", str(self.shop.path / "shop.db"))
        self.shop.instances.append("primary")
        self.shop.run("instance", "create", "primary", "--role", "primary")
        self.shop.run("region", "add", "shop.db", "--name", "main", instance="primary")
        for number in range(1, WRITERS + 1):
            self.shop.start_writer(number, "primary", RATE)
        say(f"  {WRITERS} writer processes of the application started: replicate.connect('primary', 'main')")

    def _set_up_secondary(self) -> None:
        say("\n2. The secondary, brought up from the live primary while its writers go on.")
        network = self.shop.ask("instance", "show", instance="primary")["network"]
        self.shop.instances.append("secondary")
        self.shop.run("instance", "create", "secondary", "--role", "secondary", "--network", network)
        beat = f"heartbeat_period_s={HEARTBEAT_S:g}"  # of fifteen seconds, the story would take too long
        started = self.shop.ask(
            *("receiver", "start", "--listen", "127.0.0.1:0", "--set", f"receiver.{beat}"),
            instance="secondary", show=True,
        )  # fmt: skip
        say(f"      {started['status']}")
        self.relay = Relay(_port_in(started["status"]))
        say("  (between the two stands a relay of this demonstration, which will cut the connection)")
        self.shop.run("peer", "add", "secondary", f"127.0.0.1:{self.relay.port}", instance="primary")
        self.shop.run("source", "start", "--peer", "secondary", "--set", f"source.{beat}", instance="primary")
        self.shop.run("seed", "--from", "primary", instance="secondary")
        self.shop.run("update", "start", instance="secondary")
        regions = self.shop.ask("region", "list", instance="secondary")
        self.secondary = Secondary(Path(regions[0]["path"]))

    # Watching.

    def _committed(self) -> int:
        return sum(int(writer.report["number"]) for writer in self.shop.writers)

    def _watch(self, until_s: float) -> None:
        """Show progress until so many seconds of the duration are over; checks writers and secondary meanwhile."""
        assert self.secondary is not None
        while True:
            now_s = time.monotonic() - self._began
            for writer in self.shop.writers:
                writer.check()
            applied = self.secondary.look()
            self._show(now_s, applied)
            if now_s >= until_s:
                return
            time.sleep(min(REDRAW_PERIOD_S, until_s - now_s))

    def _show(self, now_s: float, applied: int, always: bool = False) -> None:
        committed = max(self._committed(), applied)  # the writers report only twice a second
        rolled_back = sum(int(w.report["rolled_back"]) + int(w.report["refused"]) for w in self.shop.writers)
        line = (
            f"  {now_s:5.1f} s  primary {committed:6} committed, {rolled_back:4} rolled back"
            f"  |  secondary {applied:6}, backlog {committed - applied:4}"
        )
        due = always or now_s - self._printed >= LINE_PERIOD_S
        if self._on_terminal:
            print(f"\r{line}", end="\n" if due else "", flush=True)
        elif due:
            say(line)
        if due:
            self._printed = now_s

    def _note(self, text: str) -> None:
        if self._on_terminal:
            print("\r" + " " * 100 + "\r", end="")
        say(text)

    # What goes wrong.

    def _cut_the_connection(self) -> None:
        assert self.relay is not None
        assert self.secondary is not None
        self._note("\n3. The network fails: the connection is cut in the middle of the stream.")
        before = self.secondary.look()
        if not self.relay.cut(timeout_s=60.0):
            raise DemoFailedError("the connection could not be cut: nothing was sent through it for 60 s")
        self._watch(time.monotonic() - self._began + OUTAGE_S)
        self._note(f"  The network is back; the secondary had {before} transactions before the cut.")
        self.relay.mend()
        if not self.relay.carries_again(timeout_s=120.0, worth_bytes=STREAM_BYTES):
            raise DemoFailedError("the Source Server did not connect again within 120 s")
        connections = len(self.relay.carried.per_connection)
        say(f"  The Source Server has connected again, by itself (connection {connections}), and goes on where it was.")

    def _silence_the_line(self) -> None:
        assert self.relay is not None
        self._note("\n4. The line goes silent: the connection stands, and nothing comes over it, no heartbeat either.")
        self.relay.swallow()
        self._watch(time.monotonic() - self._began + SILENCE_S)
        for instance, code in (("secondary", "SOURCE_SILENT"), ("primary", "PEER_SILENT")):
            if not wait_until(lambda at=instance, of=code: self._finds(at, of), SILENCE_TOLD_S):  # type: ignore[misc]
                raise DemoFailedError(
                    f"the {instance} has not told within {SILENCE_TOLD_S:g} s that the line is silent"
                )
        self._note("  Nobody knows now how far the secondary is behind, so it is not called level; both sides warn:")
        for instance in ("secondary", "primary"):
            self.shop.run("status", instance=instance, allowed=(1,))
        self.relay.mend()
        if not wait_until(self._knows_its_lag, SILENCE_TOLD_S):
            raise DemoFailedError("the line carries again, and the secondary does not know its lag", 1)
        self._note("  The line carries again, and the secondary knows how it stands.")

    def _finds(self, instance: str, code: str) -> bool:
        found = self.shop.ask("status", instance=instance, allowed=(0, 1))["findings"]
        return code in {finding["code"] for finding in found}

    def _knows_its_lag(self) -> bool:
        said = self.shop.ask("status", instance="secondary", allowed=(0, 1))["receiving"]
        return said["lag_s"] is not None

    def _kill_the_update_process(self) -> None:
        self._note("\n5. The Update Process dies: kill -9. The receiver goes on receiving.")
        before = self._update_status()
        pid = int(before["pid"])
        if not is_alive(pid):
            raise DemoFailedError(f"the Update Process (process {pid}) did not run when it should be killed")
        os.kill(pid, signal.SIGKILL)
        if not wait_until(lambda: not is_alive(pid), 10.0):
            raise DemoFailedError(f"the Update Process (process {pid}) could not be killed")
        after = self._update_status()
        if after["state"] != "dead":
            raise DemoFailedError(f"the Update Process was killed, but is said to be '{after['state']}'")
        self._watch(time.monotonic() - self._began + OUTAGE_S)
        self._note(f"  Process {pid} is dead; this is what the operator sees, and does:")
        self.shop.run("status", instance="secondary", allowed=(0, 1))
        self.shop.run("update", "start", instance="secondary")
        if int(self._update_status()["pid"]) == pid:
            raise DemoFailedError("the Update Process that was killed is said to run")

    def _update_status(self) -> dict[str, Any]:
        said = self.shop.ask("update", "status", instance="secondary", allowed=(0, 1))["update"]
        if not isinstance(said, dict):
            raise DemoFailedError("the Update Process has never said anything of itself", 70)
        return said

    # The end of the story.

    def _finish_writers(self) -> list[dict[str, Any]]:
        assert self.secondary is not None
        reports = [writer.finish(120.0) for writer in self.shop.writers]
        self.wrote_s = time.monotonic() - self._began
        self._show(self.wrote_s, self.secondary.look(), always=True)
        committed, rolled_back, refused = (
            sum(int(report[name]) for report in reports) for name in ("number", "rolled_back", "refused")
        )
        say(f"\n6. The writers have ended: {committed} transactions committed, {rolled_back} rolled back by the")
        say(f"  application, {refused} refused by a constraint.")
        return reports

    def _catch_up(self, reports: list[dict[str, Any]]) -> None:
        last_seqno = max(int(report["last_seqno"]) for report in reports)
        for line in explained(last_seqno, sum(int(report["number"]) for report in reports)):
            say(line)
        self.shop.run("wait", "--seqno", str(last_seqno), "--timeout", f"{CATCH_UP_S:g}", instance="secondary")
        say("\n7. What an operator sees, and the proof.")
        self.shop.run("status", instance="primary", allowed=(0, 1))
        self.shop.run("status", instance="secondary", allowed=(0, 1))
        self.shop.run("compare", "--with", "secondary", instance="primary")

    def _stop(self) -> None:
        say("\n8. Everything is stopped.")
        assert self.secondary is not None
        self.secondary.connection.close()
        self.shop.stop_daemons(30.0, show=True)
        until = time.monotonic() + GONE_S
        while (left := self.shop.running()) and time.monotonic() < until:
            time.sleep(0.05)  # a daemon has said its last word a little before its process is gone
        if left:
            raise DemoFailedError(f"still running after everything was stopped: {', '.join(left.values())}", 70)

    def _compare_files(self, reports: list[dict[str, Any]]) -> None:
        say("\n9. A second opinion: both files, compared row by row by the standard library's sqlite3.")
        workspace = self.shop.path / "comparison"
        workspace.mkdir()
        path = Path(self.shop.ask("region", "list", instance="secondary")[0]["path"])
        found = compare_files(self.shop.path / "shop.db", path, workspace)
        for table, rows in sorted(found.rows.items()):
            say(f"      {table:20} {rows:8} rows")
        if found.differences:
            for line in found.differences:
                say(f"      DIFFERS  {line}")
            raise DemoFailedError("the two databases differ")
        with contextlib.closing(sqlite3.connect(workspace / "copy-1.db")) as copy:
            for report in reports:
                stands = copy.execute(
                    "SELECT count(*), max(number) FROM journal_of_work WHERE writer = ?", (report["writer"],)
                ).fetchone()
                if stands != (report["number"], report["number"]):
                    raise DemoFailedError(f"writer {report['writer']} committed {report['number']}, there are {stands}")
        say("  Equal; and the secondary has every transaction that the writers committed exactly once, and no other.")


def explained(last_seqno: int, committed: int) -> list[str]:
    """Why the last transaction's number is not how many the writers have committed."""
    others = last_seqno - committed
    return [
        f"  Does the secondary catch up with the last one, number {last_seqno}? (Numbers count all transactions of the",
        f"  primary: the writers' {committed}, and before them {others} that began its journal and added the region.)",
    ]


def _port_in(text: str) -> int:
    """The port that a Receiver Server says it listens on: `… 127.0.0.1:43210 …`."""
    for word in text.replace(",", " ").split():
        host, _, port = word.rpartition(":")
        if host == "127.0.0.1" and port.isdigit():
            return int(port)
    raise DemoFailedError(f"the Receiver Server does not say where it listens: {text!r}", 70)


def _handle_signals() -> None:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        _ignore_signals()  # once is enough; cleaning up takes a bounded time
        raise SignalledError(number)

    signal.signal(signal.SIGINT, interrupt)  # also where a shell that put us into the background had it ignored
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # deploy/demo has kept it waiting until now


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _where_next(shop: Workshop, relay: Relay | None) -> None:
    say("\nWhere to look next")
    say("  README.md          what it promises and what not; how your application uses it")
    say("  replicate help     the manual, by chapters")
    say("  replicate --help   every command; it is in the environment's bin directory:")
    say(f"                     {Path(sys.executable).parent}")
    if not shop.keep or relay is None:
        say("  deploy/demo --keep leaves the two instances behind, to look at and to play with;")
        say("  deploy/demo --failover loses a site, and brings it back.")
        return
    say("  The two instances are still there. To look at them, and to go on with them:")
    # The Receiver Server takes the relay's place: that is the address at which the primary knows its peer.
    for line in (
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        f"export REPLICATE_HOME={shlex.quote(str(shop.path))}",
        "replicate -i secondary journal show",
        'ls "$REPLICATE_HOME"/secondary/log',
        start_command("receiver", {"receiver.listen": f"127.0.0.1:{relay.port}"}, of="secondary"),
        start_command("source-secondary", of="primary"),
        f"python {shlex.quote(str(APPLICATION))} write --instance primary --writer 1 --seconds 5",
        "replicate -i primary compare --with secondary",
    ):
        say(f"      {line}")


def main(arguments: list[str]) -> int:
    """Tell the story; returns the exit code."""
    parser = argparse.ArgumentParser(description="Use deploy/demo.")
    parser.add_argument("--duration", type=float, default=20.0)
    parser.add_argument("--directory", default="")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--failover", action="store_true")
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        _handle_signals()
        return _demonstrate(options.directory, options.keep, options.duration, failover=options.failover)
    except SignalledError as error:  # before there was anything to clean up
        print(f"deploy/demo: interrupted ({error})", file=sys.stderr)
        return 128 + error.number


def _demonstrate(directory: str, keep: bool, duration_s: float, *, failover: bool = False) -> int:
    began = time.monotonic()
    try:
        shop = Workshop(directory, keep)
    except DemoFailedError as error:
        print(f"deploy/demo: {error}", file=sys.stderr)
        return error.exit_code
    story: Story | FailoverStory = FailoverStory(shop) if failover else Story(shop, duration_s)
    code, trouble, evidence = 70, "", False
    try:
        say(f"Dualsite Replicate: a demonstration in {shop.path}\n")
        story.tell()
        code = 0
    except SignalledError as error:
        code, trouble = 128 + error.number, f"interrupted ({error})"
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    except DemoFailedError as error:
        code, trouble, evidence = error.exit_code, str(error), True
    except (OSError, sqlite3.Error) as error:
        code, trouble, evidence = 74, f"{type(error).__name__}: {error}", True
    finally:
        _ignore_signals()
        if story.relay is not None:
            story.relay.close()
        kept = keep or evidence
        killed = shop.close(keep=kept)
    if code == 0 and killed:
        code, trouble = 70, f"had to be killed in the end: {', '.join(killed)}"
    if trouble:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(f"deploy/demo: {trouble}", file=sys.stderr)
            print(
                f"deploy/demo: {'kept' if kept else 'removed'}: {shop.path}; nothing is left running", file=sys.stderr
            )
        return code
    if code:
        return code
    took = f"{time.monotonic() - began:.0f} s"
    if isinstance(story, FailoverStory):
        story.where_next()
    else:
        _where_next(shop, story.relay)
        took += f", {story.wrote_s:.0f} of them with writers at work"
    say(f"\nDone in {took}: both databases are equal, and nothing is left running.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
