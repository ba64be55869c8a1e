"""The recipe for conda-forge and the release workflow agree with pyproject.toml."""

import re
import runpy
import shutil
import subprocess
import sys
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


def test_every_action_is_pinned_to_a_commit_but_the_one_that_follows_the_index():
    used = [step["uses"] for job in RELEASE["jobs"].values() for step in job["steps"]
            if "uses" in step]  # fmt: skip
    loose = [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)]
    assert loose == ["pypa/gh-action-pypi-publish@release/v1"]


def test_a_release_has_addresses_in_metadata_and_readme(tmp_path):
    """The index shows the README without the repository: no link of it is relative."""
    (tmp_path / "packaging").mkdir()
    for name in ("README.md", "pyproject.toml", "packaging/addresses.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "packaging/addresses.py", "https://example.org/a/b", "v1.2.3"]
    subprocess.run(command, cwd=tmp_path, check=True)
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", readme)
    assert [each for each in targets if not each.startswith("https://")] == []
    assert "https://example.org/a/b/raw/v1.2.3/docs/pictures/gantt.png" in targets
    assert "https://example.org/a/b/blob/v1.2.3/docs/platforms.md#installation" in targets
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["urls"]["Source"] == "https://example.org/a/b"
    assert {"Issues", "Changelog", "Documentation"} <= set(project["urls"])
    steps = [step.get("run", "") for step in RELEASE["jobs"]["build"]["steps"]]
    at = steps.index('python3 packaging/addresses.py "$REPOSITORY" "$GITHUB_REF_NAME"')
    assert steps[at + 1 :][0] == "make dist"


def test_links_within_a_page_and_to_other_hosts_stay():
    with_addresses = runpy.run_path(str(ROOT / "packaging/addresses.py"))["with_addresses"]
    text = "[a](#a) [b](https://b.org/c) [d](d.md)"
    changed = with_addresses(text, "https://x.org/y/z", "v1")
    assert changed == "[a](#a) [b](https://b.org/c) [d](https://x.org/y/z/blob/v1/d.md)"
