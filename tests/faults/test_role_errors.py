"""Changes of role on a disk that fails, in short; every call and every error are a part of `deploy/test --faults`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults import role_errors

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "call", "error"),
    [
        ("demote", "rename", "ENOSPC"),
        ("promote", "fdatasync", "EIO"),
        ("rollback", "link", "EIO"),
        ("lost apply", "fsync", "ENOSPC"),
    ],
)
def test_given_again_it_ends_as_if_nothing_had_happened(name: str, call: str, error: str) -> None:
    figures: Counter[str] = Counter()
    assert role_errors.sweep(name, call, error, figures, stride=2) == []
    assert figures["I/O errors of role changes"]


def test_an_error_of_another_kind_than_ours_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judgement itself: a command that lets an OSError out."""

    def raw(*_: object) -> None:
        raise OSError(5, "raw")

    monkeypatch.setattr(role_errors.role_runs, "become_secondary", raw)
    figures: Counter[str] = Counter()
    (violation,) = role_errors.sweep("demote", "rename", "EIO", figures)
    assert violation.startswith("demote: rename 0 EIO: work: ")  # nothing was made to fail yet
    assert "raw" in violation
    assert figures["violations"] == 1
