"""The table of a campaign's figures, as text; and the closing one, which has every column that the catalogue names.

Guarantees: every figure that must be zero stands in it, also when it is zero; in the closing table what nobody has
measured says so, and is no zero. Leaves to others: how figures came about.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.harness.checkout import ROOT, commit_of

ORDER: Final = (
    "episodes", "rounds", "kills at failpoints", "kills from outside",
    "kills between the files of a commit", "ended beside", "submitted", "acknowledged",
    "failed", "unknown", "transactions walked", "digests compared", "catch-up ms, most",
)  # fmt: skip
HIT: Final = "failpoint hit: "
"""Before the name of a failpoint that a process died at."""
BY_PART: Final = "violations: "
"""Before the name of the part that counted them; `violations` are those of all parts."""
POWER_ON: Final = "recoveries from a power loss: "
"""Before the file system that lost it."""
PLACES: Final = "places of I/O errors"
PLACES_MET: Final = "places of I/O errors met"
"""A place is one way through the code to a call, with one error."""
EMPTY: Final = "parts that looked at nothing"
NOT_MEASURED: Final = "not measured in this run"

ALL_ZERO: Final = (
    "acknowledged but missing", "failed but present", "duplicates", "gaps", "order errors", "torn between regions",
    "rows that are not wanted",
    "digests unequal",
    "durable by its own word but missing", "secondary ahead of the primary", "holes",
    "rolled back and in no lost file", "in a lost file and not rolled back",
    "role changes that lost a transaction", "role changes that doubled a transaction", "lost files without an end",
    "two primaries that agreed",
    "suppliers: acknowledged and lost", "suppliers: diverged", "suppliers: conflicts not recorded",
    "suppliers: stopped by name", "suppliers: not level", "suppliers: unexpected ends", "supplier worlds gone wrong",
    "violations", "accepted wrongly", "silently shortened", "unnamed errors",
    "torn words", "pool readers or writers failed", "damaged pool records", "pool storms not finished",
    "noticed too late", "memory grows", "descriptors leaked", "disk grows", "not converged", "unexpected ends",
    "faults not survived", "simulated violations", "failpoints missed", "planted bugs missed",
    EMPTY, "parts that failed",
)  # fmt: skip
"""Everything that must be zero in any part."""


def is_most(name: str) -> bool:
    """Whether of several such figures the largest counts; others are added."""
    return ", most" in name


def merge(into: Counter[str], more: Mapping[str, int]) -> None:
    """Add the figures of one part to those of all."""
    for name, count in more.items():
        into[name] = max(into[name], count) if is_most(name) else into[name] + count


def machine(directory: str) -> str:
    """Kernel, processors, and the file system of `directory`."""
    found = ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        if os.path.realpath(directory).startswith(mounted) and len(mounted) >= len(found.partition(" ")[0]):
            found = f"{mounted} {kind}"
    return f"Linux {platform.release()}, {os.cpu_count()} processors, {found.partition(' ')[2]}"


def table(
    figures: Mapping[str, int], *, zero: Sequence[str], seed: int, seconds: float, machine: str, asked: str = ""
) -> str:
    """One figure a line; those that must be zero at the end."""
    lines = [("seed", str(seed)), ("commit", commit_of(ROOT)), ("machine", machine)]
    lines += [("seconds", f"{seconds:.0f} {asked}")]
    lines += [(name, str(figures[name])) for name in ORDER if name in figures]
    known = {*ORDER, *zero}
    lines += sorted((name, str(count)) for name, count in figures.items() if name not in known)
    return _text(lines + [(f"must be 0: {name}", str(figures.get(name, 0))) for name in zero])


def _text(lines: Iterable[tuple[str, str]]) -> str:
    lines = list(lines)
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:<{width}}  {value}".rstrip() + "\n" for name, value in lines)


# The closing table.


def _sum(*names: str) -> Callable[[Mapping[str, int]], str]:
    """The figures of these names one after another; not measured when none of them is there."""

    def call(figures: Mapping[str, int]) -> str:
        return " / ".join(str(figures.get(name, 0)) for name in names) if {*names} & figures.keys() else ""

    return call


def _below(prefix: str) -> Callable[[Mapping[str, int]], str]:
    """Every figure whose name begins so, with the rest of its name."""

    def call(figures: Mapping[str, int]) -> str:
        found = sorted((name.removeprefix(prefix), count) for name, count in figures.items() if name.startswith(prefix))
        return ", ".join(f"{name.removesuffix(', most')} {count}" for name, count in found)

    return call


def _failpoints(figures: Mapping[str, int]) -> str:
    hits = {name: count for name, count in figures.items() if name.startswith(HIT)}
    defined = figures.get("failpoints defined", 0)
    others = figures.get("failpoints of the product", 0) - defined
    beside = f"; {others} more of replay, archive, rebuild and added regions are their own tests'" if others > 0 else ""
    return f"{len(hits)} of {defined}, {sum(hits.values())} times{beside}" if defined else ""


COLUMNS: Final[tuple[tuple[str, Callable[[Mapping[str, int]], str]], ...]] = (
    ("rounds", _sum("rounds")),
    ("rounds by class", _below("rounds: ")),
    (
        "kills at failpoints / between the files of a commit / from outside",
        _sum("kills at failpoints", "kills between the files of a commit", "kills from outside"),
    ),
    ("failpoints hit of those that the campaign kills at", _failpoints),
    ("injections made at least once / there are", _sum("injections made at least once", "injections there are")),
    ("faults injected", _below("fault ")),
    (
        "transactions submitted / acknowledged / failed / unknown",
        _sum("submitted", "acknowledged", "failed", "unknown"),
    ),
    ("recoveries from a power loss, by file system", _below(POWER_ON)),
    ("lost after a power loss, by policy", _below("acknowledged and lost: ")),
    ("lost at most, ms, by policy", _below("lost ms, most: ")),
    (
        "transactions walked (those in journals that were not pruned yet, at both sites) / over two regions",
        _sum("transactions walked", "transactions over two regions"),
    ),
    ("digests compared / unequal", _sum("digests compared", "digests unequal")),
    ("role changes, acknowledged over them", _sum("role changes", "acknowledged over role changes")),
    ("I/O errors of role changes", _sum("I/O errors of role changes")),
    ("rounds of roles", _below("role rounds: ")),
    ("killed in a change of roles", _below("killed in a role change: ")),
    ("rolled back / in lost files", _sum("rolled back", "in lost files")),
    (
        "suppliers: episodes / acknowledged / judged by journals / by the tables alone",
        _sum(
            "supplier episodes",
            "suppliers: acknowledged",
            "suppliers: transactions judged",
            "suppliers: judged by the tables alone",
        ),
    ),
    ("suppliers: values lost in merges / kept", _sum("suppliers: values lost in merges", "suppliers: conflicts kept")),
    ("rounds of suppliers", _below("supplier rounds: ")),
    ("worlds of suppliers in memory and in databases", _sum("supplier worlds")),
    ("worlds of suppliers by kind", _below("supplier worlds: ")),
    (
        "crash states enumerated / told apart and judged / violations",
        _sum("crash states enumerated", "crash states", f"{BY_PART}crash_states"),
    ),
    ("crash states: operations looked at / operations", _sum("operations looked at", "operations")),
    (
        "crash states: operations with every state within the bound / of the small runs",
        _sum("operations with every state", "operations of the small runs"),
    ),
    ("planted, must make no difference: cut without fsync, crash states", _sum("crash states: cut not synced")),
    ("crash states by run", _below("crash states: ")),
    ("I/O errors made / planned (each n, each error)", _sum("I/O errors made", "I/O errors planned")),
    ("I/O errors of servers: places in the code met / there are", _sum(PLACES_MET, PLACES)),
    ("I/O errors of servers: places in the code, each error", _below(f"{PLACES}: ")),
    ("I/O errors of servers: places met, each error", _below(f"{PLACES_MET}: ")),
    ("violations by part", _below(BY_PART)),
    ("I/O errors by call", _below("I/O errors: ")),
    ("mutations tried / detected / mended / planned", _sum("mutations", "detected", "mended", "mutations planned")),
    ("mutations by kind", _below("mutations: ")),
    ("mutations accepted wrongly / silently shortened", _sum("accepted wrongly", "silently shortened")),
    ("looks at a control word / torn", _sum("looks at a word", "torn words")),
    ("storms of the pool", _below("pool storm: ")),
    ("recovery ms, most", _sum("recovery ms, most")),
    ("time to notice ms, most, by kind of death", _below("noticed ms, most: ")),
    ("time to recover ms, most, by kind of death", _below("recovered ms, most: ")),
    ("catch-up ms, most", _sum("catch-up ms, most")),
    ("peak memory KiB", _below("peak memory KiB, most: ")),
    ("peak descriptors", _below("peak descriptors, most: ")),
    ("peak disk KiB", _below("peak disk KiB, most: ")),
    ("simulated", _below("simulated: ")),
    ("runs that did not converge", _sum("not converged")),
    ("planted bugs found / missed", _sum("planted bugs found", "planted bugs missed")),
    ("planted bugs found, by name", _below("planted bug found: ")),
    ("planted bugs missed, by name", _below("planted bug missed: ")),
)
"""Every column of the closing table, besides seed, length, commit and machine, and those that must be zero."""


def closing(
    figures: Mapping[str, int], *, seed: int, seconds: float, hours: float, machine: str, left_out: Sequence[str]
) -> str:
    """The table at the end of the whole campaign."""
    lines = [
        ("seed", str(seed)),
        ("length", f"{seconds:.0f} s ({hours:g} h asked)"),
        ("commit", commit_of(ROOT)),
        ("machine", machine),
        ("left out", "; ".join(left_out) or "nothing"),
    ]
    lines += [(name, value(figures) or NOT_MEASURED) for name, value in COLUMNS]
    return _text(lines + [(f"must be 0: {name}", str(figures.get(name, NOT_MEASURED))) for name in ALL_ZERO])


def bad(figures: Mapping[str, int], zero: Sequence[str] = ALL_ZERO) -> list[str]:
    """The figures that are not zero and must be."""
    return [name for name in zero if figures.get(name, 0)]
