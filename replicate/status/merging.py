"""What a supplier that shares partitions has to say: values that were lost in merges, and suppliers that are silent.

Guarantees: only looks, and never raises for what it cannot read: other findings tell of that.
Leaves to others: the merges (roles/merge_losses.py), who has told what (update_process/supplier_upkeep.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

from replicate.daemon.files import DaemonFiles
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.model.findings import Finding
from replicate.region.kind import KIND


def merging_findings(instance: Instance, now_wall_s: float) -> Iterator[Finding]:
    """Of a supplier; nothing of any other."""
    if not instance.is_supplier:
        return
    count = _open_merges(instance)
    if count:
        what = "1 value that was lost in a merge was" if count == 1 else f"{count} values that were lost in merges were"
        yield Finding("MERGES_OPEN", f"{what} not looked at", "replicate -i INSTANCE conflict list")
    status = DaemonFiles(instance.path, "update").read_status()
    awaited = None if status is None or not status.is_running else status.facts.get("awaited")
    for name, since in sorted(awaited.items()) if isinstance(awaited, dict) else ():
        silent_s = now_wall_s - float(since)
        if silent_s >= instance.config.status.silent_warn_s:
            told = f"{silent_s / 3600:.0f} h" if silent_s >= 3600 else f"{silent_s:.0f} s"
            text = (
                f"supplier {name} has not told for {told} that it has what all write: journals and stamps of "
                "rows are kept for it"
            )
            do = (
                f"see that it runs, and sends here; if it is gone for good: replicate -i INSTANCE replica retire {name}"
            )
            yield Finding("SUPPLIER_SILENT", text, do, name)


def who_has_what(instance: Instance) -> dict[str, dict[str, int]]:
    """By the Update Process, as it last said; see Status.told. Nothing of what is no supplier, or makes no sense."""
    status = DaemonFiles(instance.path, "update").read_status() if instance.is_supplier else None
    told = None if status is None else status.facts.get("told")
    rows = told.items() if isinstance(told, dict) else ()
    return {
        str(name): {str(origin): last for origin, last in row.items() if type(last) is int}
        for name, row in rows
        if isinstance(row, dict)
    }


def _open_merges(instance: Instance) -> int:
    count = 0
    for entry in instance.regions:
        with suppress(ReplicateError), KIND.naming(str(entry.path)):
            with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
                count += opened.open_merges()
    return count
