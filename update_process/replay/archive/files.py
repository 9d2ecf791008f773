"""The files of an archive: in a directory of this machine, without Java; or wherever else Spark's Hadoop can write.

Guarantees: a file that `write` or `store` makes is whole under its name or not there; in a directory of this machine it
is on the disk then, and `sync` brings there what others (Spark) have written. A copy is verified by its digest before
anybody uses it.
Leaves to others: what the files say.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import zstandard

from replicate.errors import BusyError, DamagedError, DiskFullError, JournalIOError, NotFoundError, UsageError
from replicate.limits import MIB
from replicate.system.failpoint import hit
from replicate.system.files import sync_directory, sync_file
from replicate.system.locks import FileLock
from replicate.system.os_errors import io_error

PACKED_LEVEL: Final = 3
_CHUNK_BYTES: Final = 4 * MIB


class ArchiveFiles(Protocol):
    """The files below one URI, named by their path below it."""

    uri: str
    keeps_out: bool
    """Whether `locked` keeps others out; else two may write there at once."""

    def locked(self) -> AbstractContextManager[None]:
        """Only one at a time writes there, where that can be known: in a directory of this machine. BusyError;
        JournalIOError, PermissionRefusedError: nobody can write there."""

    def names(self, folder: str, suffix: str = "") -> list[str]:
        """What is in a folder, sorted, but for hidden files; nothing when there is no such folder. JournalIOError."""

    def folders(self, folder: str) -> dict[str, float]:
        """The folders in a folder, and when something was last written there, in seconds since 1970 by the clock of
        the process that holds the files; nothing when there is no such folder. JournalIOError."""

    def read(self, name: str) -> bytes:
        """A small file. NotFoundError, JournalIOError."""

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a small file. JournalIOError, DiskFullError."""

    def write_new(self, name: str, data: bytes) -> bool:
        """Make a small file; False when there is one of that name, which stays. JournalIOError, DiskFullError."""

    def remove(self, folder: str) -> None:
        """Remove a folder and all in it, as far as that can be done."""

    def store(self, source: Path, name: str) -> None:
        """Copy a file of this machine there. JournalIOError, DiskFullError."""

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file from there to this machine. NotFoundError, JournalIOError, DiskFullError."""

    def sync(self, folder: str) -> None:
        """Have all files of a folder on the disk. JournalIOError."""


def archive_uri(text: str) -> str:
    """A path as a URI of this machine; what has a scheme as it is, without a slash at its end. UsageError for nothing:
    it would be wherever one happens to be."""
    if not text.strip():
        raise UsageError("an empty name is no journal and no archive", do="Name a directory or URI")
    if "://" not in text and not text.startswith("file:"):
        return Path(text).absolute().as_uri()
    return text.rstrip("/")


def local_path(uri: str) -> Path | None:
    """Where on this machine a URI points to; None when elsewhere. UsageError for a file on another host."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise UsageError("a file URI names no host", where=uri, do=f"Write file://{parts.path}, or mount it here")
    return Path(unquote(parts.path))


def open_files(uri: str, spark: Callable[[], Any] | None = None) -> ArchiveFiles:
    """The files at `uri`. `spark`: gives a session, which is asked for only where it takes one; UsageError without."""
    path = local_path(uri)
    if path is not None:
        return LocalFiles(path)
    if spark is None:
        raise UsageError("only Spark can read this URI", where=uri, do="Add --engine spark, or mount it here")
    return HadoopFiles(spark(), uri)


class LocalFiles:
    """A directory of this machine."""

    keeps_out = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = path.as_uri()

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UsageError("this is a file; an archive is a directory", where=str(self.path), do="Name one") from None
        except OSError as error:
            raise io_error(error, "the archive cannot be made", str(self.path)) from error
        lock = FileLock(self.path / ".lock")
        try:
            if not lock.try_acquire():
                raise BusyError(
                    "another `replicate archive` is writing here", where=str(self.path), do="Wait for its end"
                )
            yield
        finally:
            lock.close()

    def names(self, folder: str, suffix: str = "") -> list[str]:
        try:
            return _visible(os.listdir(self.path / folder), suffix)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise io_error(error, "the archive cannot be read", str(self.path / folder)) from error

    def folders(self, folder: str) -> dict[str, float]:
        try:
            with os.scandir(self.path / folder) as entries:
                return {one.name: _written_s(one.path) for one in entries if one.is_dir(follow_symlinks=False)}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise io_error(error, "the archive cannot be read", str(self.path / folder)) from error

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise _gone(str(path)) from None
        except OSError as error:
            raise io_error(error, "the archive cannot be read", str(path)) from error

    def write(self, name: str, data: bytes) -> None:
        self._make(name, lambda aside: aside.write_bytes(data))

    def write_new(self, name: str, data: bytes) -> bool:
        if (self.path / name).exists():  # a process that writes here holds the lock
            return False
        self.write(name, data)
        return True

    def remove(self, folder: str) -> None:
        shutil.rmtree(self.path / folder, ignore_errors=True)

    def store(self, source: Path, name: str) -> None:
        self._make(name, lambda aside: shutil.copyfile(source, aside))

    def _make(self, name: str, write: Callable[[Path], object]) -> None:
        path = self.path / name
        aside = path.with_name(f".{path.name}.part")
        # What Hadoop's own local file system may have left of a file of this name would no longer fit.
        sums = path.with_name(f".{path.name}.crc")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(aside)
            sync_file(aside)
            sums.unlink(missing_ok=True)
            hit("archive.before_rename")
            aside.replace(path)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise io_error(error, "the archive cannot be written", str(path)) from error
        sync_directory(os.fspath(path.parent))
        sync_directory(os.fspath(path.parent.parent))

    def fetch(self, name: str, target: Path) -> None:
        path = self.path / name
        try:
            shutil.copyfile(path, target)
        except FileNotFoundError:
            raise _gone(str(path)) from None
        except OSError as error:
            raise io_error(error, "the archive cannot be copied here", str(path)) from error

    def sync(self, folder: str) -> None:
        try:
            for directory, _, names in os.walk(self.path / folder):
                for name in names:
                    sync_file(Path(directory) / name)
                sync_directory(directory)
        except OSError as error:
            raise io_error(error, "syncing the archive failed", str(self.path / folder)) from error
        sync_directory(os.fspath((self.path / folder).parent))
        sync_directory(os.fspath(self.path))


def _written_s(directory: str) -> float:
    """When a directory, or anything in it, was last written."""
    found = [os.stat(directory).st_mtime]
    for where, _, names in os.walk(directory):
        found += [os.lstat(os.path.join(where, name)).st_mtime for name in names]
    return max(found)


def _visible(names: Iterable[str], suffix: str) -> list[str]:
    return sorted(name for name in names if name.endswith(suffix) and not name.startswith("."))


def _gone(where: str) -> NotFoundError:
    return NotFoundError("a file of the archive is not there", where=where, do="Restore it, or archive again elsewhere")


class HadoopFiles:
    """Any file system that Spark's Hadoop knows. What is durable there is that file system's own promise. So is which
    of two files of one name stays that are made at the same moment: HDFS keeps the first, object stores may not."""

    keeps_out = False

    def __init__(self, spark: Any, uri: str) -> None:
        """UsageError when Spark does not know such a URI."""
        self.uri = uri
        jvm = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._copy = jvm.org.apache.commons.io.IOUtils.toByteArray
        try:
            self._files = self._path(uri).getFileSystem(spark._jsc.hadoopConfiguration())
        except Exception as error:
            raise UsageError(f"this is no URI that Spark can read: {first_line(error)}", where=uri) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody knows: object stores have no locks."""
        yield

    def names(self, folder: str, suffix: str = "") -> list[str]:
        path = self._path(f"{self.uri}/{folder}")
        try:
            if not self._files.exists(path):
                return []
            return _visible((str(status.getPath().getName()) for status in self._files.listStatus(path)), suffix)
        except Exception as error:
            raise self._failed("the archive cannot be read", folder, error) from error

    def folders(self, folder: str) -> dict[str, float]:
        path = self._path(f"{self.uri}/{folder}")
        try:
            if not self._files.exists(path):
                return {}
            inside = [one for one in self._files.listStatus(path) if one.isDirectory()]
            return {str(one.getPath().getName()): self._written_s(one) for one in inside}
        except Exception as error:
            raise self._failed("the archive cannot be read", folder, error) from error

    def _written_s(self, folder: Any) -> float:
        """The same as `_written_s` below; object stores know of no time of a folder itself."""
        found = [folder.getModificationTime()]
        inside = self._files.listFiles(folder.getPath(), True)
        while inside.hasNext():
            found.append(inside.next().getModificationTime())
        return float(max(found)) / 1000.0

    def read(self, name: str) -> bytes:
        try:
            stream = self._files.open(self._path(f"{self.uri}/{name}"))
            try:
                return bytes(self._copy(stream))
            finally:
                stream.close()
        except Exception as error:
            raise self._failed("the archive cannot be read", name, error) from error

    def write(self, name: str, data: bytes) -> None:
        aside, path = self._aside(name)
        try:
            stream = self._files.create(aside, True)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
            self._rename(aside, path)
        except Exception as error:
            raise self._failed("the archive cannot be written", name, error) from error

    def write_new(self, name: str, data: bytes) -> bool:
        folder, _, last = f"{self.uri}/{name}".rpartition("/")
        aside, path = self._path(f"{folder}/.{last}.{uuid.uuid4().hex}.part"), self._path(f"{folder}/{last}")
        try:
            stream = self._files.create(aside, False)
            try:
                stream.write(bytearray(data))
            finally:
                stream.close()
            # Renamed onto nothing, never over another one, so that readers always see one of them.
            if not self._files.exists(path) and self._files.rename(aside, path):
                return True
            self._files.delete(aside, False)
            if self._files.exists(path):
                return False
        except Exception as error:
            raise self._failed("the archive cannot be written", name, error) from error
        raise JournalIOError("a file of the archive cannot be renamed into place", where=str(path))

    def remove(self, folder: str) -> None:
        with suppress(Exception):  # whatever Java throws: it only takes room
            self._files.delete(self._path(f"{self.uri}/{folder}"), True)

    def store(self, source: Path, name: str) -> None:
        aside, path = self._aside(name)
        try:
            self._files.copyFromLocalFile(False, True, self._path(source.as_uri()), aside)
            self._rename(aside, path)
        except Exception as error:
            raise self._failed("the archive cannot be written", name, error) from error

    def fetch(self, name: str, target: Path) -> None:
        try:
            self._files.copyToLocalFile(False, self._path(f"{self.uri}/{name}"), self._path(target.as_uri()), True)
        except Exception as error:
            raise self._failed("the archive cannot be copied here", name, error) from error

    def sync(self, folder: str) -> None:
        """Nothing: closing a file has made it as durable as this file system makes files."""

    def _aside(self, name: str) -> tuple[Any, Any]:
        folder, _, last = f"{self.uri}/{name}".rpartition("/")
        return self._path(f"{folder}/.{last}.part"), self._path(f"{folder}/{last}")

    def _rename(self, aside: Any, path: Any) -> None:
        self._files.delete(path, False)  # HDFS renames onto nothing
        if not self._files.rename(aside, path):
            raise JournalIOError("a file of the archive cannot be renamed into place", where=str(path))

    def _failed(self, what: str, name: str, error: Exception) -> Exception:
        where = f"{self.uri}/{name}"
        if isinstance(error, JournalIOError):
            return error
        java = getattr(error, "java_exception", None)
        if java is not None and java.getClass().getSimpleName() == "FileNotFoundException":
            return _gone(where)
        if "No space left" in str(error):
            return DiskFullError(f"{what}: {first_line(error)}", where=where, do="Free space there")
        return JournalIOError(f"{what}: {first_line(error)}", where=where, do="Look at the URI and its rights")


def first_line(error: BaseException) -> str:
    """What a Java exception says, without its trace."""
    java = getattr(error, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(error)
    return text.strip().split("\n")[0]


# Packed copies.


def pack_file(source: Path, target: Path) -> tuple[int, str]:
    """Compress a file; its length and digest. JournalIOError, DiskFullError."""
    digest = hashlib.sha256()
    length = 0
    try:
        with open(source, "rb") as read, open(target, "wb") as write:
            with zstandard.ZstdCompressor(level=PACKED_LEVEL, write_checksum=True).stream_writer(write) as packed:
                while chunk := read.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    length += len(chunk)
                    packed.write(chunk)
    except OSError as error:
        raise io_error(error, "a segment cannot be compressed", str(target)) from error
    return length, digest.hexdigest()


def same_file(path: Path, length: int, wanted: str) -> bool:
    """Whether `path` is a file of that length and digest. JournalIOError; False where there is none."""
    try:
        with open(path, "rb") as file:
            return (
                os.fstat(file.fileno()).st_size == length and hashlib.file_digest(file, "sha256").hexdigest() == wanted
            )
    except FileNotFoundError:
        return False
    except OSError as error:
        raise io_error(error, "a segment cannot be read", str(path)) from error


def unpack_file(source: Path, target: Path, length: int, wanted: str, *, where: str) -> None:
    """The reverse; DamagedError naming `where` when it is not the file of that length and digest, and no `target` then.

    JournalIOError, DiskFullError.
    """
    digest = hashlib.sha256()
    found = 0
    try:
        with open(source, "rb") as read, open(target, "wb") as write:
            with zstandard.ZstdDecompressor().stream_reader(read) as packed:
                while found <= length and (chunk := packed.read(_CHUNK_BYTES)):
                    digest.update(chunk)
                    found += len(chunk)
                    write.write(chunk)
        if (found, digest.hexdigest()) == (length, wanted):
            return
        why = "it is not what was archived"
    except zstandard.ZstdError as error:
        why = str(error)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise io_error(error, "a segment of the archive cannot be unpacked", str(target)) from error
    target.unlink(missing_ok=True)
    raise DamagedError(
        f"a segment in the archive is damaged: {why}", where=where, do="Restore the file, or archive again elsewhere"
    )
