"""The key that two instances on one host prove to each other: made at first use, or the file that an operator names.

Without a setting it is 32 random bytes in the shared memory directory, one file for each network and user, which only
that user can read: two instances of one user find it without further steps, two users do not connect unless they share
a key on purpose (`loopback.key_file`). It is gone after a restart of the machine, and a Receiver Server that ends takes
it away when no other one of the network uses it; the next makes a new one.

Guarantees: a key is never readable by others, and never seen half-written (made aside, then linked); the process that
made it first, all get the same. Leaves to others: what is done with it (wire/proof.py)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import Final

from replicate.errors import ConfigurationError, NotFoundError
from replicate.pool.shared_memory import shared_memory_directory
from replicate.security.guarded_file import open_guarded, read_guarded
from replicate.system.os_errors import io_error
from replicate.wire.proof import KEY_BYTES_MIN

KEY_BYTES: Final = 32
_WHAT: Final = "the key of loopback connections"


def default_path(network: bytes) -> Path:
    """Where the key of a network (16 bytes of its UUID) lies for this user."""
    return shared_memory_directory() / f"dualsite-{os.geteuid()}-{network.hex()}-key"


def read_key(path: Path) -> bytes:
    """The key in the file, without blanks around it. NotFoundError, PermissionRefusedError; ConfigurationError when it
    is too short."""
    key = read_guarded(path, is_secret=True, what=_WHAT).strip()
    if len(key) < KEY_BYTES_MIN:
        raise ConfigurationError(
            f"the key of loopback connections has {len(key)} bytes; at least {KEY_BYTES_MIN} are needed",
            where=str(path),
            do="Make one with: (umask 077; openssl rand -base64 32 > FILE)",
        )
    return key


class SharedKey:
    """A Receiver Server's use of the default key: the file is kept while this object holds it."""

    def __init__(self, network: bytes) -> None:
        """Nothing is touched yet."""
        self.path = default_path(network)
        self._fd = -1

    def take(self) -> bytes:
        """The key, made if there is none. Errors as `read_key`, and JournalIOError when it cannot be made."""
        while True:
            if not self._is_held():
                self._hold()
            try:
                return read_key(self.path)
            except NotFoundError:  # somebody has removed it just now
                continue

    def give_back(self) -> None:
        """Let go of the key; the last one removes the file. May be called twice. Never raises."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_held():
                self.path.unlink()
        os.close(self._fd)
        self._fd = -1

    def _is_held(self) -> bool:
        """Whether the file that we hold is the one that stands there."""
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path, follow_symlinks=False))
        except OSError:
            return False

    def _hold(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            if not self.path.exists():
                _make(self.path)
            self._fd = open_guarded(self.path, is_secret=True, what=_WHAT)
        except NotFoundError:
            return
        except OSError as error:
            raise io_error(error, "the key of loopback connections cannot be made", str(self.path)) from error
        with contextlib.suppress(BlockingIOError):  # its last user is just about to remove it: look again
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _make(path: Path) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # As hexadecimal digits: a binary key could begin or end with bytes that count as blanks.
        os.write(fd, secrets.token_hex(KEY_BYTES).encode())
        with contextlib.suppress(FileExistsError):  # another one was quicker
            os.link(aside, path)
    finally:
        os.close(fd)
        os.unlink(aside)
