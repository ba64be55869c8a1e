"""The recipe for conda-forge and the release workflow agree with pyproject.toml."""

import tomllib

import pytest

import hdgemm
from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Dask: pip install '.[dev]'")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPE = yaml.safe_load((ROOT / "packaging/recipe.yaml").read_text(encoding="utf-8"))
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))


def test_the_recipe_needs_what_the_package_needs():
    run = {one.replace(" ", "") for one in RECIPE["requirements"]["run"]}
    extra = {"python>=${{python_min}}", "__linux"}
    assert run - extra == set(PROJECT["project"]["dependencies"])
    host = {one.replace(" ", "") for one in RECIPE["requirements"]["host"]}
    assert set(PROJECT["build-system"]["requires"]) <= host


def test_the_recipe_has_version_python_and_command_of_the_package():
    assert RECIPE["context"]["version"] == hdgemm.__version__
    assert f">={RECIPE['context']['python_min']}" == PROJECT["project"]["requires-python"]
    (command,) = RECIPE["build"]["python"]["entry_points"]
    name, _, function = command.partition(" = ")
    assert PROJECT["project"]["scripts"] == {name: function}


def test_only_the_publishing_job_may_ask_for_a_token_and_it_runs_no_code_of_the_repository():
    assert RELEASE["permissions"] == {}
    jobs = RELEASE["jobs"]
    assert [name for name in jobs if "id-token" in jobs[name]["permissions"]] == ["publish"]
    assert not any("run" in step or "checkout" in step["uses"] for step in jobs["publish"]["steps"])
