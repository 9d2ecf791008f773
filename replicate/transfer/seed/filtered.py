"""A copy holds the primary's words: where a filter tells the stream in others, only a copy without rows will do.

Guarantees: a copy that would be a conflict at the first change of one of its rows, or that would show what the filter
hides, is refused before anything is touched. The settings decide, on either side: a filter that is switched off by
command comes back when its server is started again.
Regions and partitions beside the stream are refused where a filter is noted of what came last.
Leaves to others: filters themselves, and when a copy is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicate.errors import UsageError
from replicate.filters.whose_words import read_content
from replicate.instance.instance import Instance
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.snapshot import table_with_rows


def refuse_from(primary: Instance, connections: Mapping[str, Any]) -> None:
    """UsageError where `primary` has a `source.filter`, and one of these regions, by name, has a row."""
    _refuse(primary, "source", primary.config.source.filter, connections)


def refuse_into(secondary: Instance, connections: Mapping[str, Any]) -> None:
    """UsageError where `secondary` has a `receiver.filter`, and one of these regions, by name, has a row."""
    _refuse(secondary, "receiver", secondary.config.receiver.filter, connections)


def refuse_beside(secondary: Instance, do: str) -> None:
    """UsageError where what the stream brings goes through a filter, and a copy beside it would not."""
    content = read_content(secondary.run_directory)
    if content is not None and content.filter:
        raise UsageError(
            f"what comes here goes through the filter {content.filter}, and a copy would not",
            where=str(secondary.path),
            do=do,
        )


def refuse_copies_into(secondary: Instance, copies: Path) -> None:
    """The same for copies that have come, NAME.db each in this directory."""
    if not secondary.config.receiver.filter:
        return
    for copy in sorted(copies.glob("*.db")):
        connection = open_region(copy, readonly=True, plain=True, bare=True)
        try:
            refuse_into(secondary, {copy.stem: connection})
        finally:
            connection.close(True)


def _refuse(instance: Instance, side: str, configured: str, connections: Mapping[str, Any]) -> None:
    if not configured:
        return
    for name, connection in connections.items():
        table = table_with_rows(connection)
        if table:
            setting = f"{side}.filter"
            raise UsageError(
                f"table {table} of region {name} has rows, which {setting} would tell in other words, and a copy does "
                "not",
                where=str(instance.path),
                do=f"Run: replicate -i {instance.named} config unset {setting}; start that server again, then seed; "
                f"replicate -i SECONDARY region upgrade {name} --script FILE; then set {setting} again",
            )
