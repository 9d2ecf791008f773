"""Every failpoint of the product, and in which rounds of the kill campaign the process is killed there.

Guarantees: `product_failpoints` reads the source, so a failpoint that somebody adds is found at once; a test fails
until it stands in PLACES with the class of rounds that reaches it.
Leaves to others: what is at the places, and how a round is run (patrol_rounds.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("replicate", "source_server", "receiver_server", "update_process")

PLACES: Final[dict[str, tuple[str, ...]]] = {
    "commit.before_append": ("writer",),
    "append.before_write": ("writer", "update"),
    "append.after_write": ("writer", "update"),
    "append.after_piece": ("update",),
    "commit.after_commit": ("writer",),
    "finish.before_publish": ("writer", "update"),
    "publish.after_early": ("writer", "update"),
    "publish.after_padding": ("filler",),
    "publish.after_data": ("writer", "update"),
    "publish.after_head": ("writer",),
    "publish.after_published": ("writer", "update"),
    "publish.after_written": ("writer",),
    "sync.before": ("writer",),
    "sync.after": ("writer",),
    "switch.before_create": ("filler",),
    "switch.after_create": ("filler",),
    "switch.between_words": ("filler",),
    "prune.unlinked": ("filler",),
    "adopt.before_rename": ("spooler",),
    "adopt.renamed": ("spooler",),
    "adopt.after_rename": ("spooler",),
    "mend.begin": ("mender",),
    "repair.before_written": ("mender",),
    "source.begun": ("source",),
    "source.before_send": ("source",),
    "source.sent": ("source",),
    "replace.before_rename": ("source",),
    "replace.renamed": ("source",),
    "receiver.before_restart": ("receiver",),
    "receiver.before_offer": ("receiver",),
    "offer.after_data": ("receiver",),
    "offer.after_head": ("receiver",),
    "offer.after_written": ("receiver",),
    "receiver.rung": ("receiver",),
    "apply.after_commit": ("update",),
    "update.before_free": ("update",),
    "recovery.journal_done": ("both",),
    "recovery.before_redo": ("both",),
    "recovery.before_cut": ("torn",),
    "recovery.after_cut": ("torn",),
    "recovery.before_take_back": ("hole",),
    "seed.making": ("seed",),
    "seed.write": ("seed",),
    "seed.before_rename": ("seed",),
    "seed.sending": ("seed",),
    "seed.incoming": ("seed",),
    "seed.received": ("seed",),
    "seed.journal_begun": ("seed",),
    "take.before_rename": ("replay",),
    "take.renamed": ("replay",),
    "take.after_rename": ("replay",),
}
"""Failpoint -> the classes of rounds in which a process dies there."""

ELSEWHERE: Final = (
    "update_process/replay/", "update_process/region_arrival.py", "replicate/roles/", "replicate/lost/",
    "source_server/handover.py", "receiver_server/handover.py", "replicate/compare/repair.py",
    "replicate/admin/freezing.py", "replicate/transfer/seed/some_regions.py",
    "replicate/transfer/seed/partition.py", "replicate/admin/dropping_rows.py", "replicate/admin/partition_release.py",
    "replicate/admin/subscriptions.py",
    "replicate/transfer/packet/",
    "replicate/journal/reserve.py",
)  # fmt: skip
"""Files whose failpoints the campaign leaves to their own tests."""

IN_SEED: Final = {
    "seed.making": "source",
    "seed.write": "source",
    "seed.before_rename": "source",
    "seed.sending": "source",
    "seed.incoming": "receiver",
    "seed.received": "seed",
    "seed.journal_begun": "seed",
}
"""Which process of a seed comes by."""

CLASSES: Final = tuple(sorted({one for classes in PLACES.values() for one in classes}))


def product_failpoints() -> dict[str, str]:
    """The name of every failpoint in the product, and the first file that has it."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "failpoint.py":
                for name in re.findall(r'\bhit\("([a-z_.]+)"\)', path.read_text(encoding="utf-8")):
                    found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def plan(classes: tuple[str, ...]) -> list[tuple[str, str]]:
    """(class, failpoint) of every round that has to be run once, for these classes."""
    return [(one, name) for name, where in PLACES.items() for one in where if one in classes]
