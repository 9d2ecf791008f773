"""Functions and collations of the application that a region's indexes, CHECKs, generated columns, views and triggers
need: brought by the setting `region.init` to every connection that opens the region's file.

Guarantees: a connection to a region for which an `init` is set has what it registers, or is not opened: a missing
module or function, and one that fails, are a ConfigurationError that names the setting. Imported at the first
connection only.
Leaves to others: which names the schema uses, and whether both sites have the same functions.

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
_FAILURES: Final = (Exception, SystemExit)
"""A module that calls sys.exit() must not end us as if all were done."""


class _Run:
    """One run of an aggregate or window class of the application: made with the first row, and never without one."""

    def __init__(self, source: Callable[[], Any]) -> None:
        self._source = source
        self._made: Any = None

    def step(self, *arguments: Any) -> None:
        if self._made is None:
            self._made = self._source()
        self._made.step(*arguments)

    def inverse(self, *arguments: Any) -> None:
        self._made.inverse(*arguments)

    def value(self) -> Any:
        return None if self._made is None else self._made.value()

    def finalize(self) -> Any:
        return None if self._made is None else self._made.finalize()


class Registrar:
    """What `init` gets: the methods of sqlite3.Connection that register what a schema may use."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
    ) -> None:
        """Make `func` an SQL function. In an index or a generated column SQLite takes deterministic ones only."""
        self._connection.create_scalar_function(
            name, func, narg, deterministic=deterministic, flags=apsw.SQLITE_INNOCUOUS
        )

    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Callable[[], Any] | None) -> None:
        """Make a class with `step` and `finalize` an SQL aggregate, for views and triggers."""
        source = aggregate_class
        made = None if source is None else lambda: (_Run(source), _Run.step, _Run.finalize)
        self._connection.create_aggregate_function(name, made, n_arg, flags=apsw.SQLITE_INNOCUOUS)

    def create_window_function(self, name: str, num_params: int, aggregate_class: Callable[[], Any] | None) -> None:
        """Make a class with `step`, `inverse`, `value` and `finalize` an SQL window function."""
        source = aggregate_class
        window = (_Run.step, _Run.finalize, _Run.value, _Run.inverse)
        made: Any = None if source is None else lambda: (_Run(source), *window)
        self._connection.create_window_function(name, made, num_params, flags=apsw.SQLITE_INNOCUOUS)

    def create_collation(self, name: str, callback: Callable[[str, str], int] | None) -> None:
        """Make `callback` an SQL collation: negative, 0 or positive for two texts."""
        self._connection.create_collation(name, callback)


class _Recorder(Registrar):
    """Registers nothing: notes the names."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def create_function(self, name: str, *_: Any, **__: Any) -> None:
        self.names.add(name.lower())

    create_aggregate = create_window_function = create_collation = create_function


def names_brought(path: str | os.PathLike[str]) -> dict[str, str]:
    """Names in lower case, each with the setting that registers it, of what connections to the region at `path` are
    given. Raises ConfigurationError."""
    setting = _inits.get(os.path.realpath(path)) if _inits else None
    if setting is None:
        return {}
    recorder = _Recorder()
    _run(setting, recorder, os.fspath(path))
    return dict.fromkeys(recorder.names, setting)


def init_of(setting: str, region: str) -> str:
    """What `region.init` says of one region: of "a:b" a:b, of "main=a:b, stock=c:d, e:f" what stands for its name, or
    else what stands for none."""
    found = ""
    for part in setting.split(","):
        name, equals, init = part.partition("=")
        if not equals:
            found = found or name.strip()
        elif name.strip() == region:
            return init.strip()
    return found


def set_init(path: str | os.PathLike[str], setting: str, region: str) -> None:
    """From now on connections to the file at `path` of `region` are given what `setting` (see `init_of`) registers."""
    init = init_of(setting, region)
    if init:
        _inits[os.path.realpath(path)] = init
    else:
        _inits.pop(os.path.realpath(path), None)


def bring(connection: apsw.Connection, path: str) -> None:
    """Register what the region at `path` is set to need. Raises ConfigurationError."""
    setting = _inits.get(os.path.realpath(path)) if _inits else None
    if setting is not None:
        _run(setting, Registrar(connection), path)


def try_init(path: str | os.PathLike[str]) -> None:
    """Do what `bring` does for the region at `path`, for a database of its own: the file is not looked at. Raises
    ConfigurationError, the same as `bring`."""
    connection = apsw.Connection(":memory:")
    try:
        bring(connection, os.fspath(path))
    finally:
        connection.close(True)


def _run(setting: str, registrar: Registrar, path: str) -> None:
    init = load(setting)
    try:
        init(registrar)
    except _FAILURES as error:
        raise _refused(setting, f"failed: {type(error).__name__}: {error}", path) from error


def load(setting: str) -> _Init:
    """The function that `setting` names. Raises ConfigurationError."""
    module_name, colon, name = setting.partition(":")
    if not colon or not module_name or not name.isidentifier():
        raise _refused(setting, "should read module:function", "")
    try:
        module = importlib.import_module(module_name)
    except _FAILURES as error:
        raise _refused(setting, f"cannot be imported: {type(error).__name__}: {error}", "") from error
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
