"""Comments that an application writes into the journal: LOG COMMENT, as a method and as a function of SQL.

Guarantees: a comment stands in its place among the changes of its transaction, and goes with it where that is rolled
back. A connection that writes none pays nothing but the function's name.
Leaves to others: the transaction (transaction.py), and who reads comments.
"""

from __future__ import annotations

from typing import Any

from replicate.dbapi.regions import Regions
from replicate.errors import NotSupportedError, UsageError
from replicate.limits import LOG_COMMENT_BYTES_MAX
from replicate.region.sqlite.sql.statements import LOG_COMMENT


def register_comment(regions: Regions) -> None:
    """Give the connection the function of SQL."""

    def log_comment(*values: Any) -> None:
        (text,) = values
        if not isinstance(text, str):
            raise UsageError(f"{LOG_COMMENT} takes a text", where=regions.region, do="Write CAST(… AS TEXT)")
        if not regions.capture.active:  # in a view, say: the statement was taken for one that reads
            raise NotSupportedError(
                f"{LOG_COMMENT} was called by a statement that only reads",
                where=regions.region,
                do=f"Call it directly: SELECT {LOG_COMMENT}(…); or begin a transaction with BEGIN IMMEDIATE",
            )
        write_comment(regions, text)

    regions.connection.create_scalar_function(LOG_COMMENT, log_comment, 1)


def write_comment(regions: Regions, text: str) -> None:
    """Put a comment into the transaction that holds the regions. UsageError for one that cannot be kept."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"the comment cannot be written in UTF-8: {error.reason}", do="Leave that out") from error
    if size > LOG_COMMENT_BYTES_MAX:
        raise UsageError(
            f"the comment has {size} bytes, {LOG_COMMENT_BYTES_MAX} is the most", do="Shorten it, or write several"
        )
    if regions.capture.restless:
        regions.settle()  # what came before it stands before it
    regions.capture_of("main").comment(text, regions.partitions().comments)
