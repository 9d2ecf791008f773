"""One part of the fault campaign as a command: arguments, its end by time or Ctrl-C, its table, its figures in a file.

Guarantees: whatever ends it, the figures so far are printed and (`--figures`) written; exit code 0 only when every
figure that must be zero is, what must not be zero is not, and nothing was raised; 130 when it was interrupted.
Leaves to others: what the parts do.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.report import EMPTY, bad, machine, table

Work = Callable[[argparse.Namespace, "Counter[str]"], None]


def parser(module: str) -> argparse.ArgumentParser:
    """What every part understands. `--seconds`: begin nothing new after them."""
    made = argparse.ArgumentParser(prog=f"python -m {module}")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--seconds", type=float, default=math.inf)
    made.add_argument("--figures", type=Path, help="a file for the figures, as JSON")
    return made


def run_part(
    options: argparse.Namespace, work: Work, zero: Sequence[str], *, least: Sequence[str], where: str = ""
) -> int:
    """Call `work` with the options (`deadline_s` on the monotonic clock among them) and the figures that it fills.

    `least`: the figures that must *not* be zero when it has ended by itself: it would have looked at nothing."""
    signal.signal(signal.SIGTERM, _interrupt)
    figures: Counter[str] = Counter()
    began_s = time.monotonic()
    options.deadline_s = began_s + options.seconds
    code = 0
    try:
        work(options, figures)
        for name in least:
            if not figures[name]:
                print(f"nothing was looked at: {name} is 0", flush=True)
                figures[EMPTY] += 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
        figures["parts that failed"] += 1
        code = 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for name in (*zero, EMPTY):
            figures[name] += 0  # it was looked at
        if options.figures:
            options.figures.write_text(json.dumps(figures))
    print("\n" + table(
        figures, zero=(*zero, EMPTY), seed=options.seed, seconds=time.monotonic() - began_s,
        machine=where or machine(tempfile.gettempdir()),
        asked="" if math.isinf(options.seconds) else f"({options.seconds:.0f} asked)",
    ), flush=True)  # fmt: skip
    return code or int(bool(bad(figures, (*zero, EMPTY))))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
