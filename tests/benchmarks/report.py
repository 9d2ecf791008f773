"""What a benchmark prints: for each measurement one JSON line, or with `--table` a table of them in the end.

A line has, whichever benchmark it is of: `benchmark`, `unit`, `figure`, `settings`, `commit` (of this checkout, as
tests/harness/checkout.py says it) and what machine() tells of the machine, the interpreter and the load before. What a
benchmark tells besides stands between them under names of its own.

Guarantees: a line that lacks one of these is not printed, and neither is a table that leaves a line out: ROWS has each
benchmark. In the table ratios come first, and each row names its benchmark. Leaves to others: how anything is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.harness.checkout import ROOT, commit_of

Line = dict[str, Any]
Row = tuple[str, str, str]
"""What was measured; ratios; figures."""

IN_THE_NAMES: Final = "at the end of each name"
"""The unit of a line whose figures have several."""


def line(benchmark: str, *, unit: str, figure: Any, settings: Any, facts: dict[str, Any], **more: Any) -> Line:
    """A line to be printed. `facts`: of machine(), asked before anything was measured, for the load that was there."""
    return {
        "benchmark": benchmark,
        "unit": unit,
        "figure": figure,
        **more,
        "settings": settings,
        "commit": commit_of(ROOT),
        **facts,
    }


def add_table(parser: argparse.ArgumentParser) -> None:
    """The option `--table`, for say()."""
    parser.add_argument("--table", action="store_true", help="print a table in the end instead of JSON lines")


def say(lines: Iterable[Line], *, as_table: bool) -> None:
    """Print each line when it has been measured; or a table of all, when the last one has."""
    if as_table:
        print(table(list(lines)), flush=True)
    else:
        for one in lines:
            print(json.dumps(one), flush=True)


def table(lines: list[Line]) -> str:
    """In Markdown, ratios first."""
    rows = ["| what | ratio | figure | benchmark |", "|---|---|---|---|"]
    for one in lines:
        what, ratio, figure = ROWS[one["benchmark"]](one)
        rows.append(f"| {what} | {ratio or '–'} | {figure} | `bench_{one['benchmark']}` |")
    return "\n".join(rows)


def taken_on(one: Line) -> str:
    """The machine of a line, as a table's last words."""
    return (
        f"{one['processor']}, {one['cores']} cores, Linux {one['system']}, Python {one['python']}, "
        f"SQLite {one['sqlite']}, load before {one['load_before']}, commit {one['commit']}"
    )


def _ours(one: Line) -> Any:
    return next(iter(one["figure"].values()))


def _cpu(cpu_us: dict[str, float]) -> str:
    return "CPU µs " + " + ".join(str(cpu_us[daemon]) for daemon in ("source", "receiver", "update"))


def _befores(one: Line, figure: Callable[[Any], float]) -> list[str]:
    """Beside each other checkout (`--against`)."""
    ours, *others = one["figure"].items()
    return [f"{figure(ours[1]) / figure(theirs):.2f} × {name}" for name, theirs in others if figure(theirs)]


def _catch_up(one: Line) -> Row:
    def rate(figure: Any) -> float:
        return float(figure["from_first"] or figure["from_start"])

    ratios = [
        f"{one[f'ratio_to_{peer}']:.2f} × {name} ({one[peer][what]:,})"
        for peer, name, what in (
            ("gtm", "GT.M", "from_first"),
            ("postgresql", "PostgreSQL", "from_start"),
            ("floor", "the floor", "from_first"),
        )
        if f"ratio_to_{peer}" in one
    ]
    ours = _ours(one)
    text = f"{rate(ours):,.0f} {one['unit']}; {_cpu(ours['cpu_us'])}"
    if "stamps" in ours:
        text += f"; at most {ours['stamps']['bound_per_s']:,} if commits took no time"
    return f"catch-up, {one['kind']}", ", ".join(ratios + _befores(one, rate)), text


def _latency(one: Line) -> Row:
    def median(figure: Any) -> float:
        return float(figure["visible"]["median"])

    ours = _ours(one)["visible"]
    ratios = [
        f"{ours['median'] / theirs['median']:.2f} × {name} ({theirs['median']} ms, p99 {theirs['p99']})"
        for peer, name in (("gtm", "GT.M"), ("postgresql", "PostgreSQL"))
        if (theirs := one["peers"].get(peer))
    ]
    flush = one["fdatasync"]["median"]
    text = f"{ours['median']} ms, p99 {ours['p99']}; a flush {flush} ms"
    return "latency", ", ".join(ratios + _befores(one, median)), text


def _hub(one: Line) -> Row:
    def median(figure: Any) -> float:
        return float(figure["visible"]["median"])

    ours = _ours(one)
    text = (
        f"{ours['visible']['median']} ms, worst {ours['visible']['worst']}; backlog {ours['backlog_per_s']:,} a second"
    )
    return "a small transaction beside another site's backlog", ", ".join(_befores(one, median)), text


def _commit(one: Line) -> Row:
    names = {"apsw": f"plain SQLite, {one['against']}", "sqlite3": "the same by sqlite3", "gtm": "GT.M"}
    names |= {"floor: door": "the floor"}
    ratios = [
        f"{ratio:.2f} × {names.get(way, way)} ({one['figure'][way]:,})"
        for way, ratio in one["ratio"].items()
        if way in names or not way.startswith("floor: ")
    ]
    what = f"commit, {one['case']}, {one['policy']}, {one['writers']} writer{'s' if one['writers'] > 1 else ''}"
    return what, ", ".join(ratios), f"{_ours(one):,} {one['unit']}; CPU µs {next(iter(one['cpu_us'].values()))}"


def _steady(one: Line) -> Row:
    found, down = one["figure"], one["settings"]["down"]
    backlog = f"backlog {found['backlog_first_third']:,} → {found['backlog_last_third']:,}"
    memory = max(found["memory_mib"].values())
    text = f"{found['committed_per_s']:,} commits/s; {_cpu(found['cpu_us'])}; most memory {memory} MiB"
    what = f"secondary down for {down:,} transactions" if down else "steady state"
    return what, f"{backlog}, gone {found['level_after_s']} s after", text


def _scaling(one: Line) -> Row:
    figure = one["figure"]
    if one["part"] == "journal":
        short, long = figure.values()
        size = list(figure)[1]
        text = ", ".join(f"{what} {long[what]} s" for what in ("recover", "start", "resync", "status"))
        ratio = f"status {long['status'] / short['status']:.2f} × a journal of 1,000"
        return f"journal of {int(size):,} transactions", ratio, text
    what = "rows_per_s_each" if one["part"] == "secondaries" else "rows_per_s"
    text = "; ".join(f"{size}: {found[what]:,}" for size, found in figure.items())
    return f"by {one['part']}", "", f"{text} rows/s"


def _wire(one: Line) -> Row:
    figure = one["figure"]
    ratios = ", ".join(f"{ratio:.3f} ({name})" for name, ratio in figure["ratio"].items())
    text = "; ".join(f"{name}: {figure[name]['transactions_per_s']:,.0f} transactions/s" for name in figure["ratio"])
    return "wire, nobody applying", f"{ratios} × bare bytes ({figure['bare_mb_per_s']:,} MB/s)", text


def _large(one: Line) -> Row:
    figure = one["figure"]
    memory = ", ".join(f"{process} {peak}" for process, peak in figure["memory_mib"].items())
    ratio = f"applied in {figure['applied_s'] / max(figure['committed_s'], 0.1):.2f} × the time of its commit"
    text = f"committed in {figure['committed_s']} s, applied {figure['applied_s']} s; MiB: {memory}"
    return f"{one['kind']}, {one['settings']['rows']:,} rows in one transaction", ratio, text


def _patrol(one: Line) -> Row:
    figure = one["figure"]
    if "without" in figure:
        unit = "transactions/s" if one["what"].endswith("backlog") else "ms"
        return f"patrol, {one['what']}", f"{figure['ratio']} × without", f"{figure['with']:,} {unit}"
    return f"patrol: {one['what']}", f"{figure['ratio']} × digest", f"{figure['rows_per_cpu_s']:,} rows a CPU second"


def _partitions(one: Line) -> Row:
    figure, ratio = one["figure"], one["ratio_to_whole"]
    # Of few transactions a daemon's time may not be measurable.
    daemons = [name for name in ("source", "receiver", "update") if f"cpu_us_{name}" in ratio]
    cpu = ", ".join(f"{name} {ratio[f'cpu_us_{name}']:.2f}" for name in daemons)
    text = f"{figure['from_first']:,.0f} transactions/s; {figure['bytes']:.0f} bytes each"
    return f"partitions: {one['wanted']} wanted", f"CPU {cpu}; bytes {ratio['bytes']:.2f} × a whole secondary", text


def _suppliers(one: Line) -> Row:
    names = {"from_first": "", "from_start": " from the start", "update_cpu_us": " in CPU of the Update Process"}
    beside = [f"{ratio:.2f} × a secondary{names[what]}" for what, ratio in one["ratio_to_secondary"].items()]
    to_one = one.get("ratio_to_one_region", {})
    beside += [f"{ratio:.2f} × one region{names[what]}" for what, ratio in to_one.items()]
    if "postgresql" in one:
        theirs = one["postgresql"]["from_start"]
        beside.append(f"{one['ratio_to_postgresql']:.2f} × PostgreSQL with pglogical ({theirs:,.0f})")
    figure = one["figure"]
    rate = figure["from_first"] or figure["from_start"]
    return f"suppliers: {one['case']}", ", ".join(beside), f"{rate:,.0f} transactions/s"


def _packets(one: Line) -> Row:
    figure, ratio = one["figure"], one["ratio"]
    text = f"{figure['import']:,.0f} a second; export {figure['export']:,.0f}; {figure['bytes']:.0f} bytes each"
    beside = f"{ratio['import_to_replay']:.2f} × a replay of the journal, {ratio['import_to_line']:.2f} × a line"
    return "packets: import", beside, text


def _audit(one: Line) -> Row:
    figure = one["figure"]
    text = f"{figure['per_s']:,} transactions/s, {figure['cpu_us']} CPU µs each"
    return f"audit of {one['settings']['transactions']:,} transactions: {one['what']}", "", text


def _filter(one: Line) -> Row:
    figure = one["figure"]
    text = f"{figure['per_s']:,} transactions/s, {figure['server_cpu_us']} CPU µs each in the server"
    return f"through a filter: {one['what']}", "", text


def _replay(one: Line) -> Row:
    figure = one["figure"]
    ratios = [f"{one['local_to_one_by_one']:.2f} × one by one"]
    ratios += [f"net by Spark {one[f'net_spark_to_{other}']:.2f} × {name}"
               for other, name in (("one_by_one", "one by one"), ("net_local", "the local engine's"))
               if f"net_spark_to_{other}" in one]  # fmt: skip
    text = "; ".join(f"{what} {taken['warm_s']:.1f} s" for what, taken in figure.items() if taken.get("warm_s"))
    what = f"replay of {one['changes']:,} changes of {one['keys']:,} rows, {one['cores_used']} cores"
    return what, ", ".join(ratios), text


def _seeing(one: Line) -> Row:
    worst = {what: figure["worst"] for what, figure in one["figure"].items()}
    return "seen on the page", "", ", ".join(f"{what}: {seconds} s at most" for what, seconds in worst.items())


ROWS: Final[dict[str, Callable[[Line], Row]]] = {
    "catch_up": _catch_up,
    "latency": _latency,
    "commit": _commit,
    "steady": _steady,
    "scaling": _scaling,
    "wire": _wire,
    "audit": _audit,
    "filter": _filter,
    "hub": _hub,
    "large": _large,
    "packets": _packets,
    "partitions": _partitions,
    "patrol": _patrol,
    "replay": _replay,
    "seeing": _seeing,
    "suppliers": _suppliers,
}
