"""Who asks, for what is kept of a decision, and what a user is called.

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
    name = user_name(uid)
    return f"uid {uid}" if name.isdecimal() else name


def user_name(uid: int) -> str:
    """As commands take it, too: its name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
