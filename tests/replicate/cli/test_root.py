"""The tree of verbs: each is found by its name, and only what is asked for is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click

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


def verbs(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from verbs(found, *words, name)


def test_each_command_and_each_option_says_what_it_is_for() -> None:
    found = dict(verbs(root))
    assert len(found) > 100
    silent = [words for words, verb in found.items() if not (verb.help or verb.short_help)]
    silent += [
        (*words, one.opts[0])
        for words, verb in found.items()
        for one in verb.params
        if isinstance(one, click.Option) and not one.hidden and not one.help
    ]
    assert silent == []
