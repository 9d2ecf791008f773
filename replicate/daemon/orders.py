"""Orders to a running daemon over a socket in the instance's run directory: a line of JSON in, lines of JSON out.

    command                                daemon
      {"format": 1, "order": NAME} ->
      <- {"working": true}                 once a second while it is at it
      <- {"done": {…}}                     or {"error": TEXT, "exit_code": NUMBER}; the last line

Guarantees: an order was carried out when `give` returns what the daemon told; else there is no daemon, or it says
what the daemon says, or what to do about one that does not answer.
Leaves to others: the daemon's end (order_socket.py), and what is ordered. A seed is asked for over a socket of the same
kind, with lines of its own (receiver_server/seed.py).
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate.daemon.control import DaemonFailedError
from replicate.daemon.last_run import stop_and_start_again
from replicate.daemon.lock_file import LockFile
from replicate.errors import EXIT_CODES, FormatUnknownError, TryAgainError, UsageError
from replicate.instance.instance import Instance

FORMAT: Final = 1
FOLLOW: Final = "follow"
"""The order by which a Source Server takes its mode and its peer's address as they stand in the instance file now."""
PROGRESS: Final = "progress"
"""The question to a Source Server how far its peer is (source_progress.py)."""
STATISTICS: Final = "statistics"
"""The order by which a daemon logs statistics or does not: `statistics on`, `statistics on SECONDS`, `statistics
off`."""
PERIOD_S_LEAST: Final = 0.1
PERIOD_S_MOST: Final = 86400.0
"""Between two lines of statistics, as for the settings."""
PROBE: Final = "probe"
"""The order by which a Source Server that is passive tries the way to its peer, which is primary."""
SWITCH_OVER: Final = "switchover"
"""The order by which a Source Server hands the role of its instance over, and a Receiver Server asks for it. What
follows it in the line is its options, as JSON."""
SILENT_S: Final = 30.0
"""A daemon that has not said a word for so long does not answer."""
TURN_S: Final = 30.0
"""As long at most a daemon has its lock and no socket: it begins or ends, on a machine that may be busy."""


def socket_name(daemon: str) -> str:
    """Of the socket on which the daemon of that name takes orders. (At a receiver's, of its name alone, a seed is asked
    for.)"""
    return f"{daemon}-orders.socket" if daemon == "receiver" else f"{daemon}.socket"


def read_order(line: bytes) -> str:
    """The order in a command's line. FormatUnknownError for a command of another release, UsageError for no order."""
    try:
        found = json.loads(line)
        order, number = found["order"], found["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("this is no order", where=f"{line[:80]!r}") from None
    if number != FORMAT or not isinstance(order, str):
        raise FormatUnknownError(f"the order has format {str(number)[:20]}, this daemon knows {FORMAT}")
    return order


class StatisticsOrder(Struct, frozen=True):
    """`period_s`: None for that of the settings."""

    is_on: bool
    period_s: float | None = None

    @property
    def text(self) -> str:
        """As it is given."""
        period = "" if self.period_s is None else f" {self.period_s:g}"
        return f"{STATISTICS} {'on' if self.is_on else 'off'}{period}"


def read_statistics_order(order: str) -> StatisticsOrder | None:
    """What an order says of statistics; None for one of something else. UsageError where it makes no sense."""
    what, *words = order.split(" ")
    if what != STATISTICS:
        return None
    try:
        period_s = float(words[1]) if len(words) == 2 else None
    except ValueError:
        period_s = math.nan
    is_period = period_s is None or (words[0] == "on" and PERIOD_S_LEAST <= period_s <= PERIOD_S_MOST)
    if words[:1] not in (["on"], ["off"]) or len(words) > 2 or not is_period:
        raise UsageError(
            f"{order[:80]!r} is no order for statistics",
            do=f"It is on, on SECONDS ({PERIOD_S_LEAST:g} to {PERIOD_S_MOST:g}), or off",
        )
    return StatisticsOrder(words[0] == "on", period_s)


def order_with(order: str, options: Mapping[str, object]) -> str:
    """An order that has options, as it is given."""
    return f"{order} {json.dumps(options)}"


def options_of(order: str) -> dict[str, Any]:
    """The options after an order. UsageError when they make no sense."""
    try:
        return dict(json.loads(order.partition(" ")[2] or "{}"))
    except (ValueError, TypeError, RecursionError):
        raise UsageError("these are no options of an order", where=order[:80]) from None


@contextmanager
def connected(directory: Path, name: str) -> Iterator[socket.socket]:
    """A connection to the socket `name` in a run directory. OSError: nobody is there."""
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.settimeout(SILENT_S)
            connection.connect(f"/proc/self/fd/{handle}/{name}")
        finally:
            os.close(handle)
        yield connection


def lines(connection: socket.socket) -> Iterator[bytes]:
    """The lines that the daemon says, until it hangs up. TimeoutError after SILENT_S, ConnectionError."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
        *whole, data = data.split(b"\n")
        yield from whole


def give(instance: Instance, daemon: str, order: str) -> dict[str, Any] | None:
    """Give the running daemon an order; what it tells of it, or None when none runs, or none any more. It may hear the
    order twice: one that begins or ends in this instant is asked again as long as it has its lock.

    Raises DaemonFailedError with its words, TryAgainError when it does not answer."""
    where, again = str(instance.path), stop_and_start_again(instance, daemon)
    lock, until = LockFile(instance.path, daemon), time.monotonic() + TURN_S
    line = json.dumps({"format": FORMAT, "order": order}).encode() + b"\n"
    while (running := lock.probe()) is not None and not running.instead:
        try:
            return _said(instance.run_directory, daemon, line)
        except TimeoutError:
            raise TryAgainError(f"{daemon} has said nothing for {SILENT_S:g} s", where=where, do=again) from None
        except (FileNotFoundError, ConnectionError) as error:
            if time.monotonic() > until:
                raise TryAgainError(f"{daemon} takes no orders: {error}", where=where, do=again) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TryAgainError(f"{daemon} takes no orders: {error}", where=where, do=again) from error
        time.sleep(0.02)
    return None


def _said(directory: Path, daemon: str, order: bytes) -> dict[str, Any]:
    """The answer to one order. ConnectionError: it hung up before; ValueError, KeyError, TypeError: it is none."""
    with connected(directory, socket_name(daemon)) as connection:
        connection.sendall(order)
        for line in lines(connection):
            said = json.loads(line)
            if "done" in said:
                return dict(said["done"])
            if "error" in said:
                number = said["exit_code"]
                raise DaemonFailedError(str(said["error"]), number if number in EXIT_CODES else 70)
    raise ConnectionResetError("it hung up before it had done that")
