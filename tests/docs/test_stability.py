"""The public names are listed in public_names.txt, and the documents state the supported versions.

After a name is added or removed on purpose, `python -m tests.docs.test_stability` writes the list.
"""

import importlib
import inspect
import re
import tomllib
from pathlib import Path

from docs.site_hooks import documented_path, public_names
from tests.docs.pages import ROOT

LIST = Path(__file__).with_name("public_names.txt")


def test_the_public_names_are_those_of_the_list():
    listed = LIST.read_text(encoding="utf-8").split()
    assert listed == list(public_names()), "see the first lines of this module, and CHANGELOG.md"


def test_the_page_of_a_function_is_not_of_the_module_with_its_name():
    assert documented_path("hdgemm.linalg.svd") == "hdgemm.linalg.svd.svd"
    assert documented_path("hdgemm.linalg.cho_solve") == "hdgemm.linalg.cho_solve"
    for name in public_names():
        room, _, last = documented_path(name).rpartition(".")
        documented = getattr(importlib.import_module(room), last)
        assert inspect.ismodule(documented) == (name == "hdgemm.errors"), name


def test_the_page_states_the_least_supported_versions():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs/reference/stability.md").read_text(encoding="utf-8")
    least = re.search(r"minimum is Python ([\d.]+), NumPy ([\d.]+) and SciPy ([\d.]+)", page)
    dependencies = dict(one.split(">=") for one in project["dependencies"])
    assert project["requires-python"] == f">={least[1]}"
    assert (dependencies["numpy"], dependencies["scipy"]) == least.groups()[1:]


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in public_names()), encoding="utf-8")
