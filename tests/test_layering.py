"""Imports point one way and form no circle: read from the source, nothing is imported."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hdgemm"
#: Lines of a module whose idea is that large; most have 100 to 400.
LONGEST = 600

#: Rooms from the bottom up. A module imports from its own level and from below. The longest name
#: that a module begins with counts: limits and cache are used by devices, below their room.
LEVELS = {
    "child_process": 0,
    "dtypes": 0,
    "errors": 0,
    "fortran": 0,
    "energy": 0,
    "garbage": 0,
    "options": 0,
    "plan_terms": 0,
    "routines": 0,
    "tables": 0,
    "threads": 0,
    "units": 0,
    "unknown_keywords": 0,
    "machine.limits": 0,
    "machine.cache": 0,
    "matrices": 1,
    "pipeline": 2,
    "pictures": 2,
    "progress": 3,
    "progress_view": 3,
    "report": 3,
    "durable": 3,
    "run.split_report": 3,
    "machine": 4,
    "planning": 5,
    "product": 6,
    "verify": 7,
    "tasks": 8,
    "run": 8,
    "call": 9,
    "preflight": 10,
    "linalg.planning": 10,
    "linalg.devices": 11,
    "linalg.slabs": 11,
    "linalg.rows": 11,
    "linalg.solving": 11,
    "linalg": 11,
    "blas": 11,
    "array_api": 12,
    "array_functions": 12,
    "device_check": 12,
    "cluster": 12,
    "decomposition": 12,
    "mpi": 12,
    "profiling": 12,
    "client": 13,
    "__main__": 14,
    "cli": 14,
    "server": 14,
}

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level(module):
    parts = module.split(".")[1:]
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next(LEVELS[name] for name in names if name in LEVELS)


@cache
def nodes_of(path):
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports(path):
    """Every module of the package that this one imports, inside functions and types too."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(name for name in found if name.split(".")[0] == "hdgemm")


@pytest.fixture(scope="module")
def edges():
    """Each module with each module that it imports."""
    return [(name_of(path), target) for path in MODULES for target in imports(path)]


def test_imports_point_one_way(edges):
    wrong = [
        f"{own} imports {target}, which lies above it"
        for own, target in edges
        if target != "hdgemm" and level(target) > level(own)
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_edges_import_the_public_names():
    # Inside the library the names come from their modules: `hdgemm` itself imports those.
    inside = [path for path in MODULES if level(name_of(path)) != LEVELS["cli"]]
    wrong = [
        f"{name_of(path)} imports the package's public names"
        for path in inside
        for node in nodes_of(path)
        if isinstance(node, ast.Import) and any(alias.name == "hdgemm" for alias in node.names)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_service_does_not_know_the_command_line(edges):
    service = [target for own, target in edges if own.startswith("hdgemm.server")]
    assert service
    assert not any(target.startswith("hdgemm.cli") for target in service)


def references(path):
    """Every module that this one imports, or names in a string such as "hdgemm.linalg.lu:lu"."""
    found = set(imports(path))
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.partition(":")[0])
    return found


def test_internal_modules_start_with_an_underscore():
    # A module that only its own package uses is internal; the benchmarks are users like any other.
    bench = sorted((ROOT / "bench").rglob("*.py"))
    users = {name_of(path): references(path) for path in [*MODULES, *bench]}
    users["hdgemm"] = references(PACKAGE / "__init__.py")
    wrong = []
    for path in MODULES:
        name = name_of(path)
        package, _, own = name.rpartition(".")
        if path.stem.startswith("__") or package.split(".")[1:2] in ([], ["cli"], ["server"]):
            continue
        found = {user for user, names in users.items() if name in names}
        inside = all(user == package or user.startswith(f"{package}.") for user in found)
        if inside != own.startswith("_"):
            wrong.append(f"{name} is used by {sorted(found)}")
    assert not wrong, "\n".join(wrong)


def circles(graph):
    """Return the sets of modules that import each other, by Tarjan's algorithm."""
    index, low, stack, found = {}, {}, [], []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            at = stack.index(module)
            found.append(set(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return [part for part in found if len(part) > 1]


def test_imports_form_no_circle(edges):
    modules = {name_of(path) for path in MODULES if path.name != "__init__.py"}
    graph = {module: set() for module in sorted(modules)}
    for own, target in edges:
        if own in modules and target in modules and target != own:
            graph[own].add(target)
    found = [sorted(part) for part in circles(graph)]
    assert not found, "\n".join(map(str, found))


def test_a_circle_would_be_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles(graph) == [{"a", "b", "c"}]


def test_modules_stay_short():
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    long = {name: count for name, count in lines.items() if count > LONGEST}
    assert not long, f"cut them where they have two subjects: {long}"


def test_the_levels_name_what_exists():
    names = {name_of(path).removeprefix("hdgemm.") for path in MODULES}
    assert set(LEVELS) <= names
    assert {name.split(".")[0] for name in names} <= {name.split(".")[0] for name in LEVELS}


def test_a_wrong_import_would_be_seen(tmp_path):
    module = tmp_path / "wrong.py"
    module.write_text(
        "def late():\n    from hdgemm.blas import products\n    import hdgemm.cli.app as app\n"
    )
    assert {"hdgemm.blas.products", "hdgemm.cli.app"} <= imports(module)
    assert (
        level("hdgemm.blas.products") > level("hdgemm.call.compute") > level("hdgemm.pipeline.plan")
    )
    assert level("hdgemm.pipeline.plan") > level("hdgemm.matrices.base") > level("hdgemm.errors")
