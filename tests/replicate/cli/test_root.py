"""The tree of verbs: each is found by its name, and only what is asked for is imported."""

from __future__ import annotations

import subprocess
import sys

from replicate.cli.root import root


def test_each_verb_is_found_by_its_name() -> None:
    assert {name: verb.name for name, verb in root.commands.items()} == {name: name for name in root.commands}


def test_only_the_module_of_a_verb_that_is_asked_for_is_imported() -> None:
    asked = (
        "import sys; from replicate.cli.root import root; root.get_command(None, 'wait'); 'packet' in root.commands;"
        "print(*(name for name in ('status', 'packet', 'audit') if f'replicate.cli.{name}' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["status"]
