"""The space, the nine rules, the order of trials, the search, and what is remembered of it."""

import json
import logging
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from hdgemm.errors import DeviceError, DeviceUnavailableError, InputError
from hdgemm.pipeline.devices.opencl.kernel_shapes import (
    CLASSES,
    KernelShape,
    KernelShapes,
    nearest,
)
from tests.reference import DTYPES

pytest.importorskip("pyopencl")

from hdgemm.pipeline.devices.opencl import (
    _search_space as search_space,
    list_devices,
    tuner,
    tuning_cache,
)
from hdgemm.pipeline.devices.opencl._driver import Facts
from hdgemm.pipeline.devices.opencl._search_space import BestFirst, Candidate, cores, prune, walks
from hdgemm.pipeline.devices.opencl.names import locate
from hdgemm.pipeline.devices.opencl.platforms import Found
from hdgemm.pipeline.devices.opencl.tuning_cache import Trial, TuningCache, default_shape
from hdgemm.pipeline.devices.opencl.tuning_process import Trials, TuningProcess, is_wrong
from hdgemm.pipeline.devices.opencl.tuning_report import histogram, to_json, write_report

GPU = Facts(
    "gpu", "Some Platform", "Some GPU", "1.0", 80, 8 << 30, 2 << 30, 48 << 10, 1024,
    (1024, 1024, 64), 8, 32, 255, 65536, 2048, has_double=True,
)  # fmt: skip
CPU = replace(
    GPU, kind="cpu", platform="Intel(R) OpenCL", device="Some CPU", local_bytes=1 << 18,
    vector_bytes=64, simd_width=1, registers_per_item=512, registers_per_group=512,
    resident_items=1,
)  # fmt: skip
DOUBLE = np.dtype("float64")
#: The paper's best kernel on a K40: 96 × 64 × 12, 16 × 8 threads.
PAPER = KernelShape(lanes=1, dim_m=16, dim_n=8, rows=6, vectors=8, block_k=12, local=True)


def removed_by(shape, facts=GPU, dtype=DOUBLE):
    return prune([shape], dtype, facts).removed


def test_the_papers_own_kernel_passes_all_nine_rules():
    assert len(search_space.RULES) == 9
    assert prune([PAPER], DOUBLE, GPU).kept == (PAPER,)


@pytest.mark.parametrize(
    ("rule", "shape", "facts"),
    [
        ("partial_warp", replace(PAPER, dim_m=3, dim_n=5), GPU),
        ("too_many_items", replace(PAPER, dim_m=64, dim_n=32), GPU),
        ("too_many_items", PAPER, replace(GPU, max_group_shape=(4, 1024, 64))),
        ("too_many_item_registers", replace(PAPER, rows=16, vectors=8), GPU),
        ("too_many_group_registers", PAPER, replace(GPU, registers_per_group=12287)),
        ("too_much_local_memory", PAPER, replace(GPU, local_bytes=15359)),
        ("uneven_reading", replace(PAPER, block_k=1), GPU),
        ("more_loads_than_fmas", replace(PAPER, rows=1, vectors=8, block_k=16), GPU),
        ("low_occupancy_by_registers", PAPER, replace(GPU, registers_per_group=24575)),
        ("low_occupancy_by_local_memory", PAPER, replace(GPU, local_bytes=30719)),
    ],
)
def test_each_rule_removes_what_it_names(rule, shape, facts):
    assert removed_by(shape, facts) == {
        name.__name__: int(name.__name__ == rule) for name in search_space.RULES
    }


def test_limits_are_met_exactly():
    """96·64·8 bytes of C are 12,288 registers; 12·(96 + 64)·8 bytes of blocks are 15,360."""
    candidate = Candidate(PAPER, DOUBLE, GPU)
    assert candidate.item_registers * PAPER.threads == 12288
    assert candidate.group_local_bytes == 15360
    assert not search_space.too_many_group_registers(
        replace(candidate, facts=replace(GPU, registers_per_group=12288))
    )
    assert not search_space.low_occupancy_by_local_memory(
        replace(candidate, facts=replace(GPU, local_bytes=30720))
    )


@cache
def all_cores(dtype):
    return list(cores(np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_the_space_holds_shapes_of_cpus_and_of_gpus(dtype):
    shapes = all_cores(dtype)
    assert len(set(shapes)) == len(shapes) > 100_000
    for facts, threads in ((CPU, 1), (GPU, 256)):
        shape = default_shape(facts, np.dtype(dtype))
        like = [x for x in shapes if x.threads == threads and x.local == shape.local]
        assert any((x.rows, x.vectors) == (shape.rows, shape.vectors) for x in like)


def test_walks_differ_in_one_parameter():
    shape = default_shape(CPU, DOUBLE)
    for other in walks(shape):
        before, after = shape.to_json(), other.to_json()
        assert sum(before[name] != after[name] for name in before) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "facts",
    [CPU, GPU, replace(CPU, vector_bytes=32), replace(CPU, vector_bytes=16),
     replace(CPU, platform="Portable Computing Language")],
    ids=["avx512", "gpu", "avx2", "sse", "pocl"],
)  # fmt: skip
def test_shipped_shapes_are_sound(facts, dtype):
    shape = default_shape(facts, np.dtype(dtype))
    assert shape.lanes % (2 if np.dtype(dtype).kind == "c" else 1) == 0
    assert prune([shape], np.dtype(dtype), replace(facts, registers_per_item=512)).kept


def test_best_first_tries_every_group_then_follows_the_fastest():
    slow, fast = (
        [KernelShape(lanes=lanes, rows=rows, vectors=3) for rows in (2, 4, 6, 8, 10)]
        for lanes in (1, 8)
    )
    order = BestFirst([*slow, *fast])
    taken = []
    for _ in range(5):
        shape = order.take()
        order.learn(shape, 100.0 if shape.lanes == 8 else 1.0)
        taken.append(shape.lanes)
    assert set(taken[:2]) == {1, 8}
    assert taken[2:4] == [8, 8]
    order.give_up(slow[0])
    left = [shape.lanes for shape in iter(order.take, None)]
    assert set(left) == {8}


def test_a_tuned_shape_is_kept_and_another_drivers_is_stale(tmp_path):
    tuned = KernelShape(lanes=8, rows=12, vectors=2)
    kept = TuningCache(tmp_path)
    assert kept.shapes(CPU, DOUBLE).origin == "default"
    kept.save(CPU, DOUBLE, tuned, 123.0)
    assert kept.shapes(CPU, DOUBLE) == KernelShapes(tuned, "tuned", 123.0)
    assert kept.shapes(CPU, np.dtype("float32")).origin == "default"
    newer = replace(CPU, driver="2.0")
    assert kept.shapes(newer, DOUBLE) == KernelShapes(default_shape(CPU, DOUBLE), "stale")
    assert tuning_cache.shapes_for(CPU, kept)[DOUBLE].square == tuned
    assert tuning_cache.shapes_for(newer, kept)[DOUBLE].origin == "stale"


def test_an_untuned_device_is_hinted_at_once(caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for origin in ("default", "stale", "tuned"):
                tuning_cache.warn_untuned("opencl:7", "Some CPU", "float32", origin)
    assert ["another driver" in record.message for record in caplog.records] == [False, True]
    assert all("hdgemm tune --device opencl:7 --dtype float32" in x for x in caplog.messages)


ENTRY = {
    "format": 1, "driver": "1.0", "gflops": 9.0, "classes": {},
    "shape": KernelShape(lanes=8, rows=2).to_json(),
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({**ENTRY, "format": 2}),
        json.dumps({**ENTRY, "gflops": "fast"}),
        json.dumps({**ENTRY, "classes": []}),
        json.dumps({**ENTRY, "shape": {"lanes": "8"}}),
        json.dumps({**ENTRY, "shape": {"lanes": 8, "rows": 0}}),
    ],
    ids=["empty", "list", "no keys", "deep", "format", "gflops", "classes", "type", "range"],
)
def test_a_broken_entry_is_refused_with_a_sentence(tmp_path, text, caplog):
    kept = TuningCache(tmp_path)
    kept.path(CPU, DOUBLE).write_text(json.dumps(ENTRY))
    assert kept.shapes(CPU, DOUBLE).origin == "tuned"
    kept.path(CPU, DOUBLE).write_text(text)
    assert kept.shapes(CPU, DOUBLE).origin == "default"
    assert f"{kept.path(CPU, DOUBLE)} is ignored; `hdgemm tune` writes it anew" in caplog.text


def test_entry_of_the_first_release_is_read(tmp_path):
    """The file as version 1 of the format wrote it, word by word."""
    kept = TuningCache(tmp_path)
    kept.path(CPU, DOUBLE).write_text(
        """{
 "format": 1, "platform": "Intel(R) OpenCL", "device": "Some CPU", "driver": "1.0",
 "gflops": 141.5,
 "shape": {"lanes": 8, "dim_m": 1, "dim_n": 1, "rows": 8, "vectors": 3, "walk_m": 16,
  "walk_n": 4, "block_k": 4, "cache_k": 512, "local": false, "packed": true, "ahead": 0},
 "classes": {"tall": {"lanes": 8, "dim_m": 1, "dim_n": 1, "rows": 8, "vectors": 3, "walk_m": 4,
  "walk_n": 4, "block_k": 4, "cache_k": 512, "local": false, "packed": true, "ahead": 0}}
}"""
    )
    shape = KernelShape(lanes=8, rows=8, vectors=3, walk_m=16, walk_n=4, cache_k=512)
    expected = KernelShapes(shape, "tuned", 141.5, {"tall": replace(shape, walk_m=4)})
    assert kept.shapes(CPU, DOUBLE) == expected


def test_no_double_precision_means_no_double_shapes(tmp_path):
    single = replace(GPU, has_double=False)
    assert {x.name for x in tuning_cache.shapes_for(single, TuningCache(tmp_path))} == {
        "float32",
        "complex64",
    }
    with pytest.raises(DeviceUnavailableError, match="no double precision"):
        default_shape(single, DOUBLE)


def few_cores():
    return all_cores("float64")[::4001]


class FakeProcess:
    """Answers at once: speed from the register tile, and what else is told of a shape."""

    fates: dict = {}  # noqa: RUF012 - each test puts in its own
    tried: list = []  # noqa: RUF012

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def try_shape(self, shape, n, repeats, of="square"):
        self.tried.append((shape, n, of))
        fate = self.fates.get(len(self.tried))
        if fate is KeyboardInterrupt:
            raise KeyboardInterrupt
        speed = shape.rows * shape.vectors * shape.lanes + shape.walk_n
        if of == "rank-k" and shape.cache_k == 128:
            speed *= 2
        return Trial(shape, n, fate or "timed", speed if fate is None else 0.0, of=of)


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setattr(tuner, "TuningProcess", FakeProcess)
    monkeypatch.setattr(tuner, "locate", lambda _: Found(CPU, None))
    monkeypatch.setattr(tuner, "cores", lambda _: few_cores())
    FakeProcess.fates, FakeProcess.tried = {}, []
    return FakeProcess


def test_a_search_ends_with_the_fastest_and_a_funnel_that_adds_up(bench, tmp_path):
    bench.fates = {3: "wrong", 4: "failed"}
    seen = []
    found = tuner.tune("opencl:0", DOUBLE, 60.0, cache=TuningCache(tmp_path), progress=seen.append)
    funnel = found.funnel()
    removed = sum(funnel["pruned"].values())
    assert funnel["candidates"] == removed + funnel["kept"]
    assert (funnel["wrong"], funnel["failed"]) == (1, 1)
    assert found.winner.gflops >= found.default.gflops
    assert found.winner.n == 2048
    assert TuningCache(tmp_path).shapes(CPU, DOUBLE).square == found.winner.shape
    assert [each.tried for each in seen] == sorted(each.tried for each in seen)
    report = tmp_path / "report.json"
    write_report(report, to_json(found, {"numpy": 1.0}))
    values = json.loads(report.read_text())
    assert values["gflops"] == found.winner.gflops
    assert values["peers"] == {"numpy": 1.0}
    assert values["winner"]["shape"] == found.winner.shape.to_json()


def test_a_class_gets_a_shape_of_its_own_where_that_is_faster(bench, tmp_path):
    found = tuner.tune("opencl:0", DOUBLE, 60.0, cache=TuningCache(tmp_path))
    assert found.winner.of == "square"
    assert {name for name, each in found.classes.items() if each.kept} == {"rank-k"}
    choice = TuningCache(tmp_path).shapes(CPU, DOUBLE)
    assert set(choice.others) == {"rank-k"}
    kernels = tuning_cache.shapes_for(CPU, TuningCache(tmp_path))[DOUBLE]
    assert kernels.for_product((4096, 4096, 256)).cache_k == 128
    assert kernels.for_product((4096, 4096, 4096)) == kernels.square == found.winner.shape
    values = to_json(found, {})["classes"]["rank-k"]
    assert values["kept"]
    assert values["extents"] == [2048, 2048, 256]
    assert values["best"]["gflops"] > values["square"]["gflops"]


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ((5000, 5000, 5000), "square"),
        ((300, 200, 250), "square"),
        ((8192, 8192, 512), "rank-k"),
        ((8192, 64, 8192), "tall"),
        ((1, 4096, 4096), "wide"),
        ((0, 0, 0), "square"),
    ],
)
def test_a_product_belongs_to_the_class_nearest_to_its_proportions(product, name):
    assert nearest(product, CLASSES) == name


def test_an_unknown_class_falls_back_to_the_nearest_known_one():
    square, flat = KernelShape(lanes=8, rows=8), KernelShape(lanes=8, rows=8, cache_k=128)
    kernels = KernelShapes(square, others={"rank-k": flat})
    assert kernels.for_product((4096, 64, 4096)) == square
    assert kernels.for_product((4096, 4096, 64)) == flat
    assert KernelShapes(square).for_product((4096, 4096, 64)) == square


def test_a_class_shape_that_needs_other_slots_is_not_used(tmp_path):
    kept = TuningCache(tmp_path)
    square = KernelShape(lanes=8, rows=8, vectors=3)
    others = {
        "rank-k": replace(square, rows=4),
        "tall": replace(square, walk_m=4),
        "other": square,
    }
    kept.save(CPU, DOUBLE, square, 1.0, others)
    assert kept.shapes(CPU, DOUBLE).others == {"tall": others["tall"]}


def test_a_folder_that_cannot_be_written_costs_only_the_memory(bench, tmp_path):
    (tmp_path / "file").write_text("")
    broken = TuningCache(tmp_path / "file" / "folder")
    assert "cannot be written" in broken.unwritable()
    found = tuner.tune("opencl:0", DOUBLE, 60.0, cache=broken)
    assert found.winner is not None
    assert found.unkept == broken.unwritable()
    assert broken.shapes(CPU, DOUBLE).origin == "default"
    assert TuningCache(tmp_path).unwritable() == ""


def test_an_interrupted_search_keeps_what_is_known_and_goes_on(bench, tmp_path):
    bench.fates = {6: KeyboardInterrupt}
    first = tuner.tune("opencl:0", DOUBLE, 60.0, cache=TuningCache(tmp_path))
    assert first.interrupted
    assert first.winner is not None
    assert TuningCache(tmp_path).shapes(CPU, DOUBLE).square == first.winner.shape
    before = set(bench.tried[:5])
    bench.fates, bench.tried = {}, []
    FakeProcess.tried = bench.tried
    second = tuner.tune("opencl:0", DOUBLE, 60.0, cache=TuningCache(tmp_path))
    assert not second.interrupted
    assert not before & set(bench.tried)


def test_a_spent_budget_ends_the_final(bench, tmp_path):
    found = tuner.tune("opencl:0", DOUBLE, 1e-9, cache=TuningCache(tmp_path))
    assert [n for _, n, _ in bench.tried] == [384, 1024, 2048]
    assert found.winner.shape == found.default.shape
    assert found.classes == {}


def test_a_compiler_that_dies_costs_its_group_only(bench, tmp_path):
    bench.fates = {2: "crashed"}
    found = tuner.tune("opencl:0", DOUBLE, 60.0, cache=TuningCache(tmp_path))
    assert found.funnel()["crashed"] == 1
    assert found.funnel()["timed"] > 0
    assert found.winner is not None


def test_the_histogram_counts_every_speed():
    counts, low, high = histogram([1.0, 2.0, 3.0, 40.0])
    assert (sum(counts), counts[-1], low, high) == (4, 1, 0.0, 40.0)
    assert histogram([]) == ([], 0.0, 0.0)


def test_tuning_runs_from_the_command_line(tmp_path, monkeypatch):
    """The whole search with its process, on products of a few rows."""
    from typer.testing import CliRunner

    from hdgemm.cli.app import app

    rounds = {name: (share, 32) for name, (share, _) in tuner.ROUNDS.items()}
    monkeypatch.setattr(tuner, "ROUNDS", rounds)
    monkeypatch.setattr(tuner, "cores", lambda _: few_cores())
    monkeypatch.setenv("HDGEMM_CACHE", str(tmp_path))
    name, report = first_usable("Portable"), tmp_path / "report.json"
    arguments = ["tune", "--device", name, "--budget", "0.1s", "--report", str(report)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "kept for later products" in done.output
    values = json.loads(report.read_text())
    assert values["winner"]["outcome"] == "timed"
    assert values["peers"]["numpy"] > 0
    assert tuning_cache.shapes_for(locate(name).facts)[DOUBLE].origin == "tuned"


def test_a_process_that_does_not_answer_is_replaced(monkeypatch):
    shape = KernelShape(lanes=2, rows=2)
    with TuningProcess(first_usable("Portable"), DOUBLE, 60.0) as process:
        command = process._command
        process._command = [sys.executable, "-c", "import time; time.sleep(60)"]
        process._seconds = 0.1
        assert process.try_shape(shape, 32, 1).outcome == "slow"
        process._command, process._seconds = [sys.executable, "-c", ""], 60.0
        assert process.try_shape(shape, 32, 1).outcome == "crashed"
        process._command = command
        assert process.try_shape(shape, 32, 1).outcome == "timed"


def test_times_are_read_with_their_units():
    from hdgemm.cli.tune import parse_seconds

    assert [parse_seconds(text) for text in ("90", "60s", "1.5m", "1h")] == [90, 60, 90, 3600]
    for text in ("", "0", "-3", "10 days"):
        with pytest.raises(InputError, match="cannot read"):
            parse_seconds(text)


def first_usable(platform):
    for info in list_devices():
        if info.usable and platform in info.description and ":" in info.name:
            return info.name
    return pytest.skip(f"no usable OpenCL platform named {platform!r}")


#: Of a shape: whether panels are staged in local memory, and whether they are packed.
STAGING = [(False, True), (True, True), (True, False)]


@pytest.mark.parametrize(
    ("platform", "dtype", "local", "packed"),
    [
        *(("Intel", dtype, *how) for dtype in DTYPES for how in STAGING),
        # PoCL compiles for more than a second: each staging, and each kind of element, once.
        *(
            ("Portable", dtype, *how)
            for dtype, how in zip(("float64", "complex64", "float64"), STAGING, strict=True)
        ),
    ],
)
def test_shapes_for_gpus_and_cpus_multiply_rightly(platform, dtype, local, packed):
    """On a CPU only their results are judged: edges, odd k, and C that must not be read."""
    dtype = np.dtype(dtype)
    trials = Trials(first_usable(platform), dtype)
    shape = KernelShape(
        lanes=2, dim_m=4, dim_n=2, rows=3, vectors=2, walk_m=1 if local else 2,
        walk_n=1 if local else 3, block_k=4, cache_k=1 << 20 if local else 16,
        local=local, packed=packed, ahead=0 if local else 4,
    )  # fmt: skip
    answer = trials.run(shape, (53, 53, 53), 1)
    assert not is_wrong(answer["error"], dtype)
    assert answer["gflops"] > 0


def test_a_kernel_that_cannot_be_built_says_so():
    trials = Trials(first_usable("Intel"), DOUBLE)
    with pytest.raises(DeviceError, match="building an OpenCL kernel"):
        trials.run(KernelShape(lanes=5), (16, 16, 16), 1)


def test_a_wrong_result_is_seen():
    assert is_wrong(float("nan"), DOUBLE)
    assert is_wrong(1e6, DOUBLE)
    assert not is_wrong(0.3, DOUBLE)


def test_facts_of_a_part_are_its_own():
    name = first_usable("Intel")
    whole, _ = locate(name)
    try:
        half, _ = locate(f"{name}/2:1")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    assert half.compute_units == whole.compute_units // 2
    assert TuningCache().path(half, DOUBLE) != TuningCache().path(whole, DOUBLE)
