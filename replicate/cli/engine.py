"""Who does a command's work: this process, or Spark where an operator asks for it.

Guarantees: a master that nobody would ask is refused. Leaves to others: what Spark is, and its sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicate.errors import UsageError

if TYPE_CHECKING:
    from update_process.replay.command import SparkSessions


def sessions_for(engine: str | None, master: str | None) -> SparkSessions | None:
    """Spark's sessions where that was asked for: by its name, by a master, or by spark-submit. UsageError."""
    if engine == "local" or (engine is None and not master and not _is_submitted()):
        if master:
            raise UsageError("--master is Spark's", do="Leave it out, or say --engine spark")
        return None
    from update_process.replay.command import spark_sessions

    return spark_sessions(master)


def _is_submitted() -> bool:
    from update_process.replay.spark.session import is_submitted

    return is_submitted()
