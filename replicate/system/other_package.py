"""Notices the unrelated PyPI distribution `replicate`, whose files share our import name.

Guarantees: while it is installed nothing of ours runs half: one error, naming what to do.
Leaves to others: everything else. Imports nothing of ours but errors.py, which the other distribution does not have.
"""

from __future__ import annotations

import os
import sys

from replicate.errors import OtherPackageError


def check_other_package() -> None:
    """Raises OtherPackageError if the other distribution is installed, or has overwritten our `__init__`."""
    if not getattr(sys.modules["replicate"], "__dualsite__", False):
        what = "another package has overwritten replicate/__init__.py"
    elif _is_installed():
        what = "the unrelated PyPI package 'replicate' is installed in the same environment"
    else:
        return
    raise OtherPackageError(
        what,
        where=sys.prefix,
        do="Run 'pip uninstall replicate', then 'pip install --force-reinstall --no-deps dualsite', "
        "or use an environment without it",
    )


def _is_installed() -> bool:
    if not any(_may_hold_it(place) for place in sys.path):
        return False
    from importlib import metadata

    # `distribution(name)` finds normalized names; the name must be theirs to the letter.
    return any(found.metadata["Name"].lower() == "replicate" for found in metadata.distributions(name="replicate"))


def _may_hold_it(place: str) -> bool:
    """Told by names alone: to import importlib.metadata takes as long as all else that `replicate --version` does."""
    try:
        names = os.listdir(place or ".")
    except NotADirectoryError:  # an archive
        return True
    except OSError:
        return False
    infos = (name.lower() for name in names if name.lower().endswith("-info"))
    return place.lower().endswith(".egg") or any(name.startswith("replicate") for name in infos)
