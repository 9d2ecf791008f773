"""Random histories applied by Update Processes of which each has other limits, and many are killed: the same rows.

Where a window, a batch, a part of the put-off changes or the table of statements ends is nobody's business but the
applier's, and so is where one dies and the next one takes up the receive pool. Each history, and what becomes of its
appliers, is drawn from its printed seed alone; only how much a batch takes beside a commit depends on the clock.
"""

from __future__ import annotations

import os
import signal
from random import Random
from typing import Any

import pytest

from receiver_server.position import find_applied
from replicate.compare.compare import compare
from replicate.pool.receive_pool import ReceivePool
from replicate.region.sqlite.apply import order, rows
from replicate.settings.table import UpdateConfig
from replicate.system import failpoint
from tests.harness.differential import read, same
from tests.harness.forking import fork
from tests.harness.pair import Pair
from tests.update_process.replay.test_run_property import History, perform, three
from update_process import applier
from update_process.batch import deferred, open_batch
from update_process.window import columns, intake

pytestmark = pytest.mark.slow

SHARDS = 4
HISTORIES = 6
"""In each shard."""
LIMITS: tuple[tuple[Any, str, tuple[float, ...]], ...] = (
    (rows, "PLANS_MAX", (1, 3, 8, 10_000)),
    (order, "TURNS_MAX", (1, 2, 8)),
    (order, "ENDS_MAX", (1, 8)),
    (order, "KINDS_MAX", (2, 1024)),
    (order, "PART_CHANGES", (4, 16_384)),
    (order, "SAMPLED", (2,)),
    (deferred, "CHUNK_CHANGES", (2, 512)),
    (deferred, "CHUNK_BYTES", (200, 262_144)),
    (applier, "WINDOW_BYTES", (300, 1500, 262_144)),
    (applier, "BATCH_S", (0.0, 60.0)),
    (open_batch, "LONG_BYTES", (200, 2000, 1_048_576)),
    (open_batch, "LOOSE_BYTES", (1000, 6_291_456)),
    (columns, "TABLES_AT_ONCE", (0, 100)),
    (intake, "PEEK_RECORDS_MAX", (1, 3, 256)),
)
POINTS = (
    *("append.before_write", "append.after_write", "append.after_piece", "sync.before", "sync.after"),
    *("apply.after_commit", "finish.before_publish", "publish.after_early", "publish.after_written"),
    *("update.before_free", "mend.begin", "recovery.before_redo"),
)


def apply_some(pair: Pair, dice: Random) -> int:
    """What a process of its own does: an Update Process with limits of its own, for a while."""
    for module, name, values in LIMITS:
        setattr(module, name, dice.choice(values))
    for _ in range(dice.randrange(4)):
        failpoint.arm(f"{dice.choice(POINTS)}:{dice.randint(1, 6)}:kill")
    transactions = dice.choice((1, 3, 10, 250_000))
    pool = ReceivePool.attach(pair.secondary.content.uuid)
    with pair.applier(pool, UpdateConfig(batch_transactions=transactions)) as applying:
        for _ in range(dice.randint(1, 4)):
            applying.work(dice.choice((0.0, 0.01, 60.0)))
        if dice.random() < 0.3:
            os.kill(os.getpid(), signal.SIGKILL)
    pool.close()
    return 0


def in_a_process(pair: Pair, seed: int) -> bool:
    """Whether it was killed."""
    pids: list[int] = []
    fork(lambda: apply_some(pair, Random(seed)), pids.append)
    _, status = os.waitpid(pids[0], 0)
    killed = os.WIFSIGNALED(status)
    assert (os.WTERMSIG(status) == signal.SIGKILL) if killed else os.WEXITSTATUS(status) == 0
    return killed


def apply_all(pair: Pair, dice: Random) -> int:
    """As many processes as it takes, the receive pool filled a little at a time; how many were killed."""
    last, kills = pair.last_seqno(), 0
    with pair.receive_pool() as pool:
        for _ in range(400):
            if pool.last_received_seqno < last:
                upto = min(last, pool.last_received_seqno + dice.randint(1, 40))
                pair.deliver(pool, upto=upto, record_bytes=dice.choice((100, 500, 65_536)))
            kills += in_a_process(pair, dice.getrandbits(64))
            applied = find_applied(pair.secondary)
            assert applied is not None
            if pool.restart_requested():  # one that was killed had the first parts of a large transaction
                pool.restart(applied.last_seqno)
            if applied.last_seqno == last and not pool.used_bytes:
                return kills
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_any_limits_and_any_deaths_make_the_same_rows(shard: int) -> None:
    kills = 0
    for number in range(HISTORIES):
        text = f"limits-{shard}-{number}"
        print(f"seed {text}")
        history = History.draw(text)
        with three(*history.scripts) as (pair, _):
            perform(pair, history)
            kills += apply_all(pair, Random(f"applied {text}"))
            for region in pair.primary.regions:
                same(read(region.path), read(pair.secondary.region(region.name).path), "primary", "secondary")
            assert compare(pair.primary, pair.secondary, timeout_s=5).equal
    assert kills
