"""Who may be seeded: a secondary, whatever way its copy comes.

Guarantees: a supplier is told how it becomes one first; nothing is changed.
Leaves to others: whether that secondary may be seeded now (install.py, partition.py, some_regions.py).
"""

from __future__ import annotations

from replicate.errors import PermissionRefusedError
from replicate.instance.instance import Instance


def require_secondary(instance: Instance) -> None:
    """PermissionRefusedError unless it is one."""
    if instance.role == "secondary":
        return
    do = f"First: {instance.way_out}" if instance.is_supplier else "Name the secondary with -i"
    raise PermissionRefusedError(
        f"instance {instance.name} is {instance.told_role}: only a secondary is seeded", where=str(instance.path), do=do
    )
