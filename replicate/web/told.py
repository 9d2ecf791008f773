"""Pictures as the page gets them: one JSON text for all instances.

Guarantees: every figure stands there as it is in the picture; curves are short: numbers, null where nothing is known,
and the places where a number is "that or more". No row of a table, and no key of a certificate, is in a picture.
Leaves to others: when it is sent (server.py). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from replicate.seeing.curve import CurvePoint
from replicate.seeing.picture import InstancePicture, ShownCurve

POINTS: Final = 240
"""Of each curve."""


def told(pictures: Iterable[InstancePicture], *, now_us: int, past_s: int) -> bytes:
    """All of them, at `now_us`."""
    document = {"now_us": now_us, "past_s": past_s, "instances": [_instance(one) for one in pictures]}
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _instance(picture: InstancePicture) -> dict[str, Any]:
    made = {**asdict(picture), "curves": [_curve(one) for one in picture.curves], "is_wrong": picture.is_wrong}
    made["path"] = picture.path
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
