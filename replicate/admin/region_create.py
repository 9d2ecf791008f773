"""Adding a region whose database is not there yet: an empty one is made, and becomes a region.

Guarantees: nothing that is there is touched; after a failure the file is gone again, unless it is the instance's region
by then, which `add_region` finishes. A killed command may leave an empty database: that is added as any other.
Leaves to others: what becomes of a database that is there (admin/regions.py).
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from replicate.admin.regions import add_region
from replicate.errors import AlreadyExistsError, ReplicateError
from replicate.instance.file import RegionEntry, check_name
from replicate.instance.instance import Instance
from replicate.region.sqlite.create import create_database
from replicate.region.sqlite.open import COMPANIONS, Told


def add_created_region(
    instance: Instance, file: Path, *, name: str, told: Told | None = None, partition: str | None = None
) -> RegionEntry:
    """Make an empty database at `file`, and that the region `name`; `told` and `partition` as add_region has them.

    Raises AlreadyExistsError (something is there), NotFoundError (there is no such directory), PermissionRefusedError,
    DiskFullError, and what `add_region` does.
    """
    check_name(name, "region")
    try:
        create_database(file)
    except AlreadyExistsError as error:
        named = f"{instance.named} region add {shlex.quote(str(file))} --name {name}"
        do = f"Name another path; or, to add the database that is there: replicate -i {named}"
        raise AlreadyExistsError(error.what, where=error.where, do=do) from error
    try:
        return add_region(instance, file, name=name, told=told, partition=partition)
    except ReplicateError:
        instance.reload()
        if all(entry.path != file for entry in instance.regions):
            with suppress(OSError):
                for ending in ("", *COMPANIONS):
                    file.with_name(file.name + ending).unlink(missing_ok=True)
        raise
