"""The mark that a lost file is on the primary: what cannot be read counts as not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.errors import JournalIOError
from replicate.lost.sent_mark import forget_sent, note_sent, sent_to


def test_noted_and_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "east-lost-1-2.jsonl"
    assert sent_to(file) == ""
    note_sent(file, "west")
    assert sent_to(file) == "west"
    for _ in range(2):
        forget_sent(file)
        assert sent_to(file) == ""


def test_what_cannot_be_read_is_not_sent_yet(tmp_path: Path) -> None:
    file, mark = tmp_path / "east-lost-1-2.jsonl", tmp_path / "east-lost-1-2.jsonl.sent"
    for text in ("", "{", "[]", '{"format": 9, "to": "west"}', '{"format": 1}'):
        mark.write_text(text)
        mark.chmod(0o600)
        assert sent_to(file) == ""
    mark.unlink()
    mark.mkdir()
    with pytest.raises(JournalIOError):
        note_sent(file, "west")
