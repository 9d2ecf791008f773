"""Commands in errors and findings that can be pasted as they stand.

A text that knows no instance writes `replicate -i INSTANCE VERB` for the instance that it is about, and a name of its
own (`-i PRIMARY`, a peer's name) for any other one. A process that knows how the instance was named puts that in: the
command line for its errors (cli/main.py), `replicate status` for its findings; an `Instance` has its own name (`named`)
for texts that are about just that one. A daemon has none but the full path; the process that passes its error on says
where that is.

Guarantees: nothing else of a text is changed.
Refuses to know: instances, and who prints. Pure.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

THIS_INSTANCE: Final = "-i INSTANCE"


def pasteable(text: str, named: str, path: str = "") -> str:
    """`text` with the instance's name, quoted for a shell, wherever it stands for one; and for `path`, the instance's
    full path, if that is given: a daemon names it so."""
    if path:
        text = re.sub(rf"-i {re.escape(shlex.quote(path))}(?=\s|\Z)", THIS_INSTANCE, text)
    return text.replace(THIS_INSTANCE, f"-i {named}")
