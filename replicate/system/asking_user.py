"""Who asks, for what is kept of a decision.

Guarantees: a name or a number, always; through sudo the one that asked, not root.
Leaves to others: whether the name is to be believed: it is for people, and proves nothing.
"""

from __future__ import annotations

import os
import pwd


def who_asks() -> str:
    """The user's name, or `uid N` where it has none."""
    number = os.environ.get("SUDO_UID", "") if os.getuid() == 0 else ""
    uid = int(number) if number.isdecimal() else os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"
