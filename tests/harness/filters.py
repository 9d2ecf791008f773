"""Filters for tests, as callables: each does one thing to every transaction.

Guarantees: they keep nothing between two transactions. Leaves to others: what becomes of what they say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]


def same(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """What it was told."""
    return changes


def loud_and_without_entries(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """Owners of accounts in capitals; nothing of the table entry."""
    for change in changes:
        if change.get("table") == "entry":
            continue
        if change.get("table") == "account":
            for image in ("before", "after"):
                if image in change:
                    change[image]["owner"] = change[image]["owner"].upper()
        yield change


def numbered(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """Owners of accounts with a mark at their end."""
    for change in changes:
        for image in ("before", "after"):
            if image in change and change.get("table") == "account":
                change[image]["owner"] += "!"
        yield change


def talkative(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """What it was told, and its number on standard output, where no filter may write."""
    print(begin["begin"], flush=True)
    return changes


def loud_names(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """Names in capitals, after the change."""
    for change in changes:
        if "after" in change:
            change["after"]["name"] = change["after"]["name"].upper()
        yield change


def two_names(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """The release with one column name, told to the one with two."""
    for change in changes:
        if change.get("table") == "person":
            for image in ("before", "after"):
                if image in change:
                    row = change[image]
                    row["first"], _, row["last"] = row.pop("name").partition(" ")
        yield change


def one_name(begin: Event, changes: Iterator[Event]) -> Iterator[Event]:
    """And back."""
    for change in changes:
        if change.get("table") == "person":
            for image in ("before", "after"):
                if image in change:
                    row = change[image]
                    row["name"] = f"{row.pop('first')} {row.pop('last')}"
        yield change
