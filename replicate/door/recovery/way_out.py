"""What to do about a damaged journal of one's own: code that finds a damaged frame does not know whose journal it is.

Guarantees: an error that says itself what to do is left as it is; any other names the way out of its instance.
Leaves to others: what is damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replicate.errors import JournalDamagedError, JournalMissingError, ReplicateError
from replicate.instance.instance import Instance


def with_way_out(error: ReplicateError, instance: Instance) -> ReplicateError:
    """The error, met in the journal of `instance`."""
    if not isinstance(error, JournalDamagedError | JournalMissingError) or error.do:
        return error
    do = f"Run: replicate -i {instance.named} journal verify; then restore the file, or begin again: {instance.way_out}"
    return type(error)(error.what, where=error.where, do=do, **error.facts)


@contextmanager
def telling_way_out(instance: Instance) -> Iterator[None]:
    """The same for what is raised within."""
    try:
        yield
    except (JournalDamagedError, JournalMissingError) as error:
        told = with_way_out(error, instance)
        if told is error:
            raise
        raise told from error


def way_out_of_changed_schema(instance: Instance, region: str) -> str:
    """What to do where somebody else has changed the schema of that region."""
    if instance.is_supplier:
        return f"Make a new copy: {instance.way_out}, then replicate -i {instance.named} update start"
    if instance.role == "secondary":
        return f"Seed it again: {instance.way_out}"
    return (
        f"Run: replicate -i {instance.named} region release {region}; then add the database again and seed the "
        "secondaries"
    )
