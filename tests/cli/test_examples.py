"""The examples at the end of each command's help: two, short enough for a terminal, and valid."""

import shlex

import numpy as np
import pytest
import typer

from hdgemm.cli.app import app
from hdgemm.cli.examples import _EXAMPLES
from hdgemm.routines.registry import commands as routines
from tests.cli.commands import command_line

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


def matrices(folder):
    """Store the matrices that examples name."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((40, 40)) for name in "ABC"}
    arrays["S"] = arrays["A"] @ arrays["A"].T + 40 * np.eye(40)
    arrays |= {"T": rng.standard_normal((300, 12)), "Y": rng.standard_normal((300, 2))}
    arrays |= {"E": rng.standard_normal((60, 8)), "Q": rng.standard_normal((20, 8))}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "F.h5", "w") as file:
        file["/g/B"] = arrays["B"]


def test_examples_run_as_typed_one_after_another(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    matrices(tmp_path)
    run = command_line(monkeypatch, capsys)
    lines = [*_EXAMPLES["multiply"], "hdgemm plan lu A.npy --host-memory 2GB --json"]
    lines += [line for each in routines().values() for line in each.examples]
    lines += [*_EXAMPLES[""], *_EXAMPLES["verify"][1:]]
    for line in lines:
        done = run(*shlex.split(line)[1:])
        assert done.returncode == 0, f"{line}: {done.stderr}"
    product = run(*shlex.split(_EXAMPLES["verify"][0])[1:])
    assert product.returncode == 0, product.stderr
