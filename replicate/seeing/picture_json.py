"""Pictures as a page gets them: one JSON text for all instances.

Guarantees: every figure stands there as it is in the picture; curves are short: numbers, null where nothing is known,
and the places where a number is "that or more". No row of a table, and no key of a certificate, is in a picture.
Leaves to others: when it is sent (replicate/web), and how another host reads it (read_picture.py). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, to_builtins

from replicate.seeing.curve import CurvePoint
from replicate.seeing.picture import InstancePicture, ShownCurve

POINTS: Final = 240
"""Of each curve."""
PAST_S: Final = (60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400)
"""The times that the curves of a page may have."""
PAST_USUAL_S: Final = PAST_S[2]


class RecordTable(Struct, frozen=True):
    """A table of what a site knows of all. `why_not`: why there are no rows; "" where there are."""

    key: str
    title: str
    about: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    why_not: str = ""


def told_tables(name: str, tables: Iterable[RecordTable]) -> bytes:
    """The tables of the instance of that name."""
    return json.dumps({"name": name, "tables": [to_builtins(one) for one in tables]}).encode()


def told(pictures: Iterable[InstancePicture], *, now_us: int, past_s: int) -> bytes:
    """All of them, at `now_us`."""
    document = {"now_us": now_us, "past_s": past_s, "instances": [_instance(one, now_us) for one in pictures]}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _instance(picture: InstancePicture, now_us: int) -> dict[str, Any]:
    made = {**to_builtins(picture), "curves": [_curve(one) for one in picture.curves], "is_wrong": picture.is_wrong}
    for finding in made["findings"]:  # those who look at a page may not read rows
        finding["text"] = finding.pop("brief") or finding["text"]
    del made["seen_us"]
    made["age_us"] = picture.age_us(now_us)
    return made


def _curve(curve: ShownCurve) -> dict[str, Any]:
    return {
        "key": curve.key,
        "label": curve.label,
        "unit": curve.unit,
        "now": _short(curve.now),
        "is_at_least": curve.now.is_at_least,
        "values": [_short(point) for point in curve.points],
        "at_least": [place for place, point in enumerate(curve.points) if point.is_at_least],
    }


def _short(point: CurvePoint) -> float | None:
    return None if point.value is None else round(point.value, 3)
