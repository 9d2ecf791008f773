"""Guarded files: a regular file of ours or root's, that nobody else may write, nor read where it is secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replicate.errors import ConfigurationError, NotFoundError, PermissionRefusedError, ReplicateError
from replicate.security.guarded_file import BYTES_MAX, open_guarded, read_guarded, stamp

CONTENT = b"-----BEGIN PRIVATE KEY-----"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(CONTENT)
    path.chmod(0o600)
    return path


def linked(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def made_large(path: Path) -> None:
    os.truncate(path, BYTES_MAX + 1)


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)  # opening one that nobody writes to must not wait


def made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (Path.unlink, NotFoundError, "the key is not there"),
        (linked, PermissionRefusedError, "symbolic link"),
        (lambda path: path.chmod(0o640), PermissionRefusedError, r"read by others \(mode 0640\)"),
        (lambda path: path.chmod(0o604), PermissionRefusedError, "read by others"),
        (lambda path: path.chmod(0o620), PermissionRefusedError, "by others"),
        (made_large, ConfigurationError, "no regular file, or larger"),
        (made_a_pipe, ConfigurationError, "no regular file"),
        (made_a_directory, ConfigurationError, "no regular file"),
    ],
)
def test_what_others_could_have_put_there_or_read_is_refused_by_name(
    key: Path, change: Callable[[Path], None], error: type[ReplicateError], said: str
) -> None:
    change(key)
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error, match=said) as caught:
        read_guarded(key, is_secret=True, what="the key")
    assert str(key) in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_what_is_no_secret_may_be_read_by_others_and_written_by_none(key: Path) -> None:
    key.chmod(0o644)
    assert read_guarded(key, is_secret=False, what="the certificate") == CONTENT
    key.chmod(0o664)
    with pytest.raises(PermissionRefusedError, match=r"written by others \(mode 0664\)"):
        read_guarded(key, is_secret=False, what="the certificate")


def test_a_file_of_another_user_is_refused(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    if owner == 0:  # only root can give a file away; anybody else says that he is another
        owner = 12345
        os.chown(key, owner, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(PermissionRefusedError, match=f"belongs to user {owner}"):
        read_guarded(key, is_secret=True, what="the key")


def test_the_file_that_was_checked_is_the_one_that_is_read(key: Path) -> None:
    fd = open_guarded(key, is_secret=True, what="the key")
    try:
        key.unlink()
        key.write_bytes(b"another's")
        assert os.read(fd, 100) == CONTENT
    finally:
        os.close(fd)


def test_a_stamp_tells_any_change(key: Path) -> None:
    seen = [stamp(key)]
    key.chmod(0o400)
    seen.append(stamp(key))
    key.chmod(0o600)
    with key.open("ab") as file:
        file.write(b"x")
    seen.append(stamp(key))
    aside = key.with_name("aside")
    aside.write_bytes(key.read_bytes())
    aside.replace(key)
    seen.append(stamp(key))
    key.unlink()
    seen.append(stamp(key))
    assert seen[-1] == ()
    assert len(set(seen)) == len(seen)
