"""The examples of docstrings."""

import doctest

import pytest


def run_examples(doc: str, names: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples of a docstring, of which there must be one, with some names defined.

    An example prints what the docstring shows after it, if that shows anything.
    """
    examples = doctest.DocTestParser().get_examples(doc)
    assert examples
    for example in examples:
        exec(compile(example.source, "example", "single"), names)
        assert capsys.readouterr().out == example.want or not example.want
