"""Who asks: by name, through sudo too, and by number where there is no name."""

from __future__ import annotations

import os
import pwd

import pytest

from replicate.system.asking_user import user_name, who_asks


def test_the_user_and_the_one_that_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_UID", raising=False)
    assert who_asks() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 0)
    for number, name in (("1", pwd.getpwuid(1).pw_name), ("987654", "uid 987654"), ("x", "root"), ("9" * 30, None)):
        monkeypatch.setenv("SUDO_UID", number)
        assert who_asks() == (name or f"uid {number}")
    monkeypatch.setattr(os, "getuid", lambda: 1)
    assert who_asks() == pwd.getpwuid(1).pw_name


def test_a_user_without_a_name_is_a_number() -> None:
    assert (user_name(0), user_name(987654)) == ("root", "987654")
