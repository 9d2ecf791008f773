"""Whether a server filters its stream, and how it stands with it: configured at the start, turned on and off by order.

Guarantees: no filter can be turned on where none was configured when the server started; what a filter failed of is
told until it has let a transaction through again. Where none is configured, nothing is told.
Leaves to others: the filter's process (filter_process.py), and that the stream begins again at an order.
"""

from __future__ import annotations

from typing import Any, Final

from replicate.errors import ConfigurationError, FilterError, FormatUnknownError, ReplicateError

ORDER: Final = "filter"
ON: Final = "on"
OFF: Final = "off"
SHOW: Final = "show"
WISHES: Final = (ON, OFF, SHOW)


class FilterSwitch:
    """Of one server, for as long as it runs."""

    def __init__(self, section: str, setting: str) -> None:
        """`section`: of the settings, which names the one to set; `setting`: "" for none."""
        self.setting = setting
        self.is_on = bool(setting)
        self.identity = ""
        """Of the program that ran last; "" before it was looked at."""
        self.error: FilterError | None = None
        """What it has failed of, until it lets a transaction through."""
        self._section = section

    def failed(self, error: FilterError) -> bool:
        """The filter has failed; whether that is news."""
        is_news = self.error is None or str(self.error) != str(error)
        self.error = error
        return is_news

    def passed(self) -> None:
        """A transaction has come out."""
        self.error = None

    def obey(self, wish: str) -> bool:
        """Turn it `on` or `off`, or only `show` it; whether that has changed anything. ConfigurationError where none is
        configured, FormatUnknownError for another wish."""
        if wish not in WISHES:
            raise FormatUnknownError(f"a filter is turned on or off, or shown, not {wish[:40]!r}")
        if wish == SHOW:
            return False
        if not self.setting:
            raise ConfigurationError(
                "this server was started without a filter, and none can be inserted while it runs",
                where=f"{self._section}.filter",
                do=f"Set {self._section}.filter, then stop it and start it again",
            )
        was, self.is_on = self.is_on, wish == ON
        if not self.is_on:
            self.error = None
        return was != self.is_on

    def looked_at(self, form: str) -> str:
        """What the filter that is on is known by now; "" for none, or one that is not there. Reads its files."""
        if not self.is_on:
            return ""
        from replicate.filters.program import program  # here: no start waits for it where there is no filter

        try:
            self.identity = program(self.setting, form).identity
        except ReplicateError:  # the stream finds that, and says so
            return ""
        return self.identity

    @property
    def told(self) -> str:
        """What it is, for the status and the log: its identity, and whether it is off; "" where there is none."""
        named = self.identity or self.setting
        return f"off ({named})" if named and not self.is_on else named

    def facts(self) -> dict[str, Any]:
        """For an answer to an order."""
        return {
            "filter": self.setting or None,
            "is_on": self.is_on,
            "identity": self.identity or None,
            "error": None if self.error is None else str(self.error),
        }

    def measured(self) -> dict[str, Any]:
        """The figures; none where there is no filter."""
        if not self.setting:
            return {}
        return {"filter": self.told, "filter_error": "" if self.error is None else str(self.error)}
