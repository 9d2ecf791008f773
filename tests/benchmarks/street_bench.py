"""What the benchmarks share: the street of replicate/bench/street.py, and which commit of which checkout is measured.

Guarantees: as there; and a benchmark that is asked to end leaves no daemon behind. Refuses to know: what is measured.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from replicate.bench.street import ROOT as ROOT
from replicate.bench.street import Bench as Bench
from replicate.bench.street import Cost as Cost
from replicate.bench.street import attach as attach
from replicate.bench.street import cost_of as cost_of
from replicate.bench.street import machine as machine
from replicate.bench.street import make_database as make_database
from replicate.bench.street import value as value
from replicate.bench.street import wait_for as wait_for

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `Bench.close` is come to


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, with a plus sign when its files differ from it; of a copy without history, its path."""
    words = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(checkout)
