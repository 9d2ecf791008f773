"""The key of loopback connections: one for all who may, none for others, gone with its last user."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from replicate.errors import ConfigurationError, NotFoundError, PermissionRefusedError
from replicate.security.shared_key import SharedKey, default_path, read_key

NETWORK = b"n" * 16


@pytest.fixture(autouse=True)
def _memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))


def test_made_once_for_its_owner_and_removed_by_the_last() -> None:
    first, second = SharedKey(NETWORK), SharedKey(NETWORK)
    key = first.take()
    assert len(key) == 64
    assert second.take() == first.take() == read_key(default_path(NETWORK)) == key
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    first.give_back()
    first.give_back()
    assert second.take() == key
    second.give_back()
    assert list(first.path.parent.iterdir()) == []
    assert first.take() != key
    first.give_back()


def test_each_network_has_its_own() -> None:
    one, other = SharedKey(NETWORK), SharedKey(b"m" * 16)
    assert one.take() != other.take()
    one.give_back()
    other.give_back()


def test_a_key_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """Shared memory is emptied under a running Receiver Server."""
    held = SharedKey(NETWORK)
    key = held.take()
    held.path.unlink()
    again = held.take()
    assert again != key
    assert read_key(held.path) == again
    held.give_back()
    assert list(tmp_path.iterdir()) == []


def test_many_at_once_agree(tmp_path: Path) -> None:
    holders = [SharedKey(NETWORK) for _ in range(8)]
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda h=h: keys.append(h.take())) for h in holders]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    for holder in holders:
        holder.give_back()
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_can_read_or_have_put_there_is_refused(tmp_path: Path) -> None:
    held = SharedKey(NETWORK)
    held.take()
    held.path.chmod(0o644)
    with pytest.raises(PermissionRefusedError, match="0644"):
        held.take()
    held.give_back()
    held.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionRefusedError, match="symbolic link"):
        SharedKey(NETWORK).take()


def test_a_file_that_an_operator_names(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("  0123456789abcdef\n")
    path.chmod(0o600)
    assert read_key(path) == b"0123456789abcdef"
    path.write_text("short")
    with pytest.raises(ConfigurationError, match="at least 16"):
        read_key(path)
    os.unlink(path)
    with pytest.raises(NotFoundError):
        read_key(path)
