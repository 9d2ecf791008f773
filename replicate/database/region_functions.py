"""Functions and collations of the application that a region's indexes, CHECKs and generated columns need: brought by
the setting `region.init` to every connection that opens the region's file.

Guarantees: a connection to a region for which an `init` is set has what it registers, or is not opened: a missing
module or function, and one that fails, are a ConfigurationError that names the setting. Imported at the first
connection only.
Refuses to know: which names the schema uses, and whether both sites have the same functions.

Kept by file, because connections are opened in many places and none of them may come without.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any, Final

import apsw

from replicate.errors import ConfigurationError

_Init = Callable[["Registrar"], object]

_inits: Final[dict[str, str]] = {}
"""The setting of each region's file."""


class Registrar:
    """What `init` gets: the two methods of sqlite3.Connection that register what a schema may use."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Make `func` an SQL function. In an index or a generated column SQLite takes deterministic ones only."""
        self._connection.create_scalar_function(
            name, func, narg, deterministic=deterministic, flags=apsw.SQLITE_INNOCUOUS
        )

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None) -> None:
        """Make `callback` an SQL collation: negative, 0 or positive for two texts."""
        self._connection.create_collation(name, callback)


def set_init(path: str | os.PathLike[str], setting: str) -> None:
    """From now on connections to the region's file at `path` are given what `setting` ("module:function", or "" for
    none) registers."""
    if setting:
        _inits[os.path.realpath(path)] = setting
    else:
        _inits.pop(os.path.realpath(path), None)


def bring(connection: apsw.Connection, path: str) -> None:
    """Register what the region at `path` is set to need. Raises ConfigurationError."""
    setting = _inits.get(os.path.realpath(path)) if _inits else None
    if setting is None:
        return
    init = load(setting)
    try:
        init(Registrar(connection))
    except Exception as error:
        raise _refused(setting, f"failed: {type(error).__name__}: {error}", path) from error


def load(setting: str) -> _Init:
    """The function that `setting` names. Raises ConfigurationError."""
    module_name, colon, name = setting.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise _refused(setting, "should read module:function", "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise _refused(setting, f"can not be imported: {type(error).__name__}: {error}", "") from error
    found: Any = getattr(module, name, None)
    if not callable(found):
        raise _refused(setting, f"names nothing that can be called: {module_name} has no function {name}", "")
    init: _Init = found
    return init


def _refused(setting: str, why: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"region.init = {setting!r} {why}",
        where=path or "replicate.toml",
        do="Put the application's module on PYTHONPATH of everything that opens the region, or mend the setting",
    )
