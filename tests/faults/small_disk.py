"""A small file system of its own for one site, as root: it can be filled, be given room, and be taken for writing.

Guarantees: nothing stays mounted. Leaves to others: what lies on it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 96 << 20
_PATH: Final = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH})
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class SmallDisk:
    """`kind`: tmpfs, or ext4 in a file, which an error makes read-only."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.kind, self.where = kind, directory / "small"
        self._image, self._ballast = directory / "small.img", self.where / "ballast"
        self.where.mkdir()
        if kind == "ext4":
            with open(self._image, "wb") as file:
                file.truncate(SIZE_BYTES)
            _command("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        if self.kind == "ext4":
            _command("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.where))
        else:
            _command("mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES},mode=700", "tmpfs", str(self.where))

    def unmount(self) -> None:
        """Also when it is busy for a moment still."""
        for _ in range(100):
            done = subprocess.run(
                ["umount", str(self.where)], capture_output=True, check=False, env={**os.environ, "PATH": _PATH}
            )
            if done.returncode == 0 or not os.path.ismount(self.where):
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.where} cannot be unmounted: {done.stderr!r}")

    def fill(self) -> None:
        """Not a byte is free any more."""
        with open(self._ballast, "ab", buffering=0) as file:
            for piece in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(piece)) == piece:
                        pass

    def give_room(self) -> None:
        """As before it was filled."""
        self._ballast.unlink()

    def fail(self) -> None:
        """What the kernel does on an error of the disk: no write from here on (EROFS)."""
        assert self.kind == "ext4", self.kind
        _command("mount", "-o", "remount,abort", str(self.where))

    def mend(self) -> None:
        """The operator's unmount, check and mount. Nobody may have anything open there."""
        self.unmount()
        checked = subprocess.run(
            ["e2fsck", "-p", str(self._image)], capture_output=True, check=False, env={**os.environ, "PATH": _PATH}
        )
        assert checked.returncode in (0, 1), checked.stdout + checked.stderr
        self.mount()

    @classmethod
    @contextlib.contextmanager
    def mounted(
        cls, directory: Path, disk: tuple[str, str] | None
    ) -> Iterator[tuple[SmallDisk | None, dict[str, Path]]]:
        """The disk for `disk` (site, kind), and where that site is; nothing where it is None."""
        if disk is None:
            yield None, {}
            return
        site, kind = disk
        made = cls(directory, kind)
        try:
            yield made, {site: made.where / site}
        finally:
            made.unmount()
