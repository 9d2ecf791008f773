"""What the benchmarks share: the street of replicate/bench/street.py.

Guarantees: as there; and a benchmark that is asked to end leaves no daemon behind. Leaves to others: what is measured.
"""

from __future__ import annotations

import signal
import sys

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
