"""The examples at the end of each command's help: two, short enough for a terminal, and valid."""

import shlex

import pytest
import typer

from hdgemm.cli.app import app

#: Columns of a terminal, without the indentation of a help's last lines.
WIDTH = 76


def commands(group, words=()):
    """Each command below a group by its words, like "job list"."""
    for name, command in group.commands.items():
        yield " ".join((*words, name)), command
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))


ROOT = typer.main.get_command(app)
COMMANDS = {"": ROOT, **dict(commands(ROOT))}


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_ends_with_two_examples_that_the_command_accepts(words):
    command = COMMANDS[words]
    shown = command.get_help(command.make_context(words, [], resilient_parsing=True))
    *_, before, title, first, second = map(str.strip, shown.splitlines())
    assert (before, title) == ("", "Examples:")
    assert first != second
    for example in (first, second):
        assert len(example) <= WIDTH
        line = shlex.split(example)
        given = line[line.index("hdgemm") + 1 :]
        count = 2 if " ".join(given[:2]) in COMMANDS else 1
        named = " ".join(given[:count])
        # The earlier names of the commands of `job` show today's names.
        assert named.startswith(words) or (command.hidden and named.startswith("job "))
        COMMANDS[named].make_context(named, given[count:])  # refuses what the command has not
