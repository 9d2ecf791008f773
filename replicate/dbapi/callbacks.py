"""Callbacks of an application: functions, aggregates, window functions, collations, authorizer, progress and trace.

Guarantees: an exception in a callback becomes the error that sqlite3 makes of it; callbacks are kept away while the
commit door is at work, so that they can neither see nor stop it.
Leaves to others: transactions.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import apsw

from replicate.dbapi.connection_state import ConnectionState
from replicate.dbapi.errors import DataError, OperationalError, ProgrammingError, coded, surface
from replicate.dbapi.row import contiguous
from replicate.errors import ReplicateError
from replicate.region.sqlite.guards import refuse_own

_tracebacks = False


def enable_callback_tracebacks(enable: bool, /) -> None:
    """Whether exceptions in callbacks are also reported through sys.unraisablehook."""
    global _tracebacks
    _tracebacks = bool(enable)


_NOT_IGNORED: Final = frozenset(
    {
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
    }
)
"""What an authorizer may deny but not have ignored: the statement would do nothing and say that it did, and what we
keep of transactions would be wrong."""


class _Report:
    """What sys.unraisablehook gets."""

    def __init__(self, error: BaseException, source: Any) -> None:
        self.exc_type, self.exc_value, self.exc_traceback = type(error), error, error.__traceback__
        self.err_msg, self.object = None, source


def report(error: BaseException, source: Any) -> None:
    """Tell sys.unraisablehook of what happened in a callback, if that is wanted."""
    if _tracebacks:
        sys.unraisablehook(_Report(error, source))  # type: ignore[arg-type]


def _raised(error: BaseException, source: Any, text: str) -> BaseException:
    report(error, source)
    if isinstance(error, MemoryError):
        return MemoryError()
    if isinstance(error, OverflowError):
        return coded(DataError("string or blob too big"), apsw.SQLITE_TOOBIG)
    return coded(OperationalError(text), apsw.SQLITE_ERROR)


def _result(value: Any) -> Any:
    """A callback's result as SQLite takes it. TypeError for what it does not."""
    if value is None or isinstance(value, int | float | str | bytes):
        if isinstance(value, str) and not value.isascii():
            value.encode()
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return value
    return contiguous(value)


class _Aggregate:
    """One run of an application's aggregate or window class."""

    def __init__(self, made: Callable[[], Any], *, window: bool) -> None:
        self._source, self._window = made, window
        self._instance: Any = None
        self._dead = False

    def _error(self, error: BaseException, method: str) -> BaseException:
        return _raised(error, self._source, f"user-defined aggregate's '{method}' method raised error")

    def _call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        function = getattr(self._instance, method, None)
        if function is None:
            error = AttributeError(f"{type(self._instance).__name__!r} object has no attribute {method!r}")
            report(error, self._source)
            raise coded(
                OperationalError(f"user-defined aggregate's '{method}' method not defined"), apsw.SQLITE_ERROR
            ) from error
        try:
            return function(*arguments)
        except Exception as error:
            self._dead = True
            raise self._error(error, method) from error

    def step(self, *arguments: Any) -> None:
        if self._instance is None:  # sqlite3 makes it with the first row, and never without one
            try:
                self._instance = self._source()
            except Exception as error:
                self._dead = True
                raise self._error(error, "__init__") from error
        self._call("step", arguments)

    def inverse(self, *arguments: Any) -> None:
        self._call("inverse", arguments)

    def value(self) -> Any:
        return self._checked("value")

    def final(self) -> Any:
        if self._dead or self._instance is None:
            return None
        try:
            return self._checked("finalize")
        except sqlite3.OperationalError:
            if self._window:
                return None  # SQLite tells nobody of these (measured with sqlite3)
            raise

    def _checked(self, method: str) -> Any:
        value = self._call(method, ())
        try:
            return _result(value)
        except Exception as error:
            raise self._error(error, method) from error


def create_function(
    state: ConnectionState, name: str, narg: int, func: Callable[..., Any] | None, *, deterministic: bool = False
) -> None:
    """Make `func` an SQL function; None removes it."""
    state.check()
    wrapped = None
    if func is not None:
        function = func

        def wrapped(*arguments: Any) -> Any:
            try:
                return _result(function(*arguments))
            except Exception as error:
                raise _raised(error, function, "user-defined function raised exception") from error

    _bring(state, name)
    try:
        state.apsw.create_scalar_function(name, wrapped, narg, deterministic=deterministic)
    except (apsw.Error, ValueError) as error:
        raise OperationalError("Error creating function") from error


def create_aggregate(state: ConnectionState, name: str, n_arg: int, aggregate_class: Callable[[], Any] | None) -> None:
    """Make a class with `step` and `finalize` an SQL aggregate; None removes it."""
    state.check()
    made = None
    if aggregate_class is not None:
        source = aggregate_class

        def made() -> Any:
            run = _Aggregate(source, window=False)
            return (run, _Aggregate.step, _Aggregate.final)

    _bring(state, name)
    try:
        state.apsw.create_aggregate_function(name, made, n_arg)
    except (apsw.Error, ValueError) as error:
        raise OperationalError("Error creating aggregate") from error


def create_window_function(
    state: ConnectionState, name: str, num_params: int, aggregate_class: Callable[[], Any] | None, /
) -> None:
    """Make a class with `step`, `inverse`, `value` and `finalize` an SQL window function; None removes it."""
    state.check()
    made = None
    if aggregate_class is not None:
        source = aggregate_class

        def made() -> Any:
            run = _Aggregate(source, window=True)
            return (run, _Aggregate.step, _Aggregate.final, _Aggregate.value, _Aggregate.inverse)

    _bring(state, name)
    try:
        state.apsw.create_window_function(name, made, num_params)
    except (apsw.Error, ValueError) as error:
        raise ProgrammingError(str(error) or "Error creating window function") from error


def create_collation(state: ConnectionState, name: str, callback: Callable[[str, str], int] | None, /) -> None:
    """Make `callback` an SQL collation; None removes it."""
    state.check()
    if callback is not None and not callable(callback):
        raise TypeError("parameter must be callable")
    wrapped = None
    if callback is not None:
        function = callback

        def wrapped(one: str, other: str) -> int:
            try:
                result = function(one, other)
                return (result > 0) - (result < 0)
            except Exception as error:
                report(error, function)
                return 0

    if not isinstance(name, str):
        raise TypeError(f"create_collation() argument 1 must be str, not {type(name).__name__}")
    _bring(state, name)
    try:
        state.apsw.create_collation(name, wrapped)
    except apsw.Error as error:
        raise surface(error) from error


def _bring(state: ConnectionState, name: str) -> None:
    try:
        state.transaction.functions.bring(name)
    except (ReplicateError, apsw.Error) as error:
        raise surface(error) from error


def set_authorizer(state: ConnectionState, authorizer_callback: Callable[..., int] | None) -> None:
    """Ask `authorizer_callback` about every access that a statement is prepared for."""
    state.check()
    authorize_by(state, authorizer_callback)


def authorize_by(state: ConnectionState, function: Callable[..., int] | None) -> None:
    """Have our bookkeeping kept from the application; what passes, `function` is asked about."""
    regions, attachments = state.transaction.regions, state.transaction.attachments

    def authorize(action: int, one: str | None, two: str | None, database: str | None, trigger: str | None) -> int:
        if regions.inside:
            return apsw.SQLITE_OK
        refuse_own(action, one, two, database, trigger, regions.guarded)
        attachments.refuse_plain(action, one, database)
        if function is None:
            return apsw.SQLITE_OK
        try:
            result = function(action, one, two, database, trigger)
            if result == apsw.SQLITE_IGNORE and action in _NOT_IGNORED:
                return apsw.SQLITE_DENY
            return result if isinstance(result, int) and -(1 << 31) <= result < 1 << 31 else apsw.SQLITE_DENY
        except Exception as error:
            report(error, function)
            return apsw.SQLITE_DENY

    state.apsw.authorizer = authorize


def set_progress_handler(state: ConnectionState, progress_handler: Callable[[], Any] | None, n: int) -> None:
    """Call `progress_handler` every `n` instructions; a true result interrupts the statement."""
    state.check()
    if progress_handler is None:
        state.apsw.set_progress_handler(None, 0)
        return
    function, regions = progress_handler, state.transaction.regions

    def progress() -> bool:
        if regions.inside or state.describing:
            return False
        try:
            return bool(function())
        except Exception as error:
            report(error, function)
            return True

    state.apsw.set_progress_handler(progress, n)


def set_trace_callback(state: ConnectionState, trace_callback: Callable[[str], Any] | None) -> None:
    """Call `trace_callback` with the text of every statement of the application, and with BEGIN and COMMIT of
    ours."""
    state.check()
    state.trace = trace_callback
    state.transaction.tell = None if trace_callback is None else partial(tell, state)


def tell(state: ConnectionState, text: str) -> bool:
    """Tell the trace callback of a statement, if there is one by now."""
    trace = state.trace
    if trace is not None:
        try:
            trace(text)
        except Exception as error:
            report(error, trace)
    return True
