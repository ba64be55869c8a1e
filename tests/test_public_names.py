"""The package's public names: each is there, and importing the package loads nothing heavy."""

import inspect
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import scipy.linalg

import hdgemm
from hdgemm.linalg.absent_names import ADVICE

HEAVY = ("numpy", "scipy", "psutil", "threadpoolctl", "h5py", "zarr", "pyopencl", "cupy",
         "rich.console", "pydantic")  # fmt: skip


@pytest.mark.parametrize("name", hdgemm.__all__)
def test_every_public_name_is_there(name):
    assert getattr(hdgemm, name) is getattr(hdgemm, name)


def test_dir_shows_the_public_names_only():
    assert dir(hdgemm) == sorted(hdgemm.__all__)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = hdgemm.nothing


def test_verify_stays_the_function_though_a_package_has_its_name():
    import hdgemm.verify.freivalds

    assert inspect.isfunction(hdgemm.verify)


@pytest.mark.parametrize(
    "start",
    ["import hdgemm", "import hdgemm.cli.app as app; app.app(['--help'], standalone_mode=0)"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(start):
    code = f"import sys; {start}; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].strip() == ""


@pytest.mark.parametrize("name", ADVICE)
def test_a_routine_that_is_missing_names_another(name):
    with pytest.raises(AttributeError, match=f"has no attribute '{name}': use ") as caught:
        getattr(hdgemm.linalg, name)
    advice = str(caught.value).partition(": use ")[2]
    for whole in re.findall(r"\b(?:scipy|numpy|hdgemm)(?:\.\w+)+", advice):
        home, _, function = whole.rpartition(".")
        found = getattr(import_module(home), function)
        assert callable(found) or function == "__version__"


@pytest.mark.parametrize("library", [np.linalg, scipy.linalg], ids=lambda each: each.__name__)
def test_every_function_of_numpy_and_scipy_has_advice(library):
    for name in set(library.__all__) - set(hdgemm.linalg.__all__) - {"test"}:
        if callable(getattr(library, name)):
            with pytest.raises(AttributeError, match=f"'{name}': use "):
                getattr(hdgemm.linalg, name)


def test_a_routine_that_is_missing_names_another_when_it_is_imported():
    with pytest.raises(ImportError, match=r"use scipy\.linalg\.expm on an array"):
        from hdgemm.linalg import expm  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from hdgemm.linalg import nothing  # noqa: F401
    assert not hasattr(hdgemm.linalg, "expm")
    with pytest.raises(ImportError, match=r"use hdgemm\.linalg\.svds"):
        from hdgemm.decomposition import TruncatedSVD  # noqa: F401
    assert not hasattr(hdgemm.decomposition, "TruncatedSVD")


@pytest.mark.parametrize(
    ("name", "advice"),
    [("svd", "hdgemm.linalg.svd"), ("PCA", "hdgemm.decomposition.PCA"),
     ("eigvals", "hdgemm.linalg.eigsh"),
     ("sqrtm", "scipy.linalg.sqrtm on an array"),
     ("mean", "numpy.mean on an array"),
     ("LinAlgWarning", r"scipy\.linalg\.LinAlgWarning$"),
     ("LinAlgError", "hdgemm.linalg.SingularMatrixError")],
)  # fmt: skip
def test_a_name_of_another_package_says_where_it_is(name, advice):
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': use {advice}"):
        getattr(hdgemm, name)
    assert not hasattr(hdgemm, name)


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [(hdgemm, "Optoins", "did you mean Options?"), (hdgemm, "load", "use hdgemm.open(path)"),
     (hdgemm, "choleksy", "did you mean hdgemm.linalg.cholesky?"),
     (hdgemm.linalg, "pca", "use hdgemm.decomposition.pca"),
     (hdgemm.linalg, "syrk", "use hdgemm.syrk"),
     (hdgemm.linalg, "choleksy", "did you mean cholesky?"),
     (hdgemm.mpi, "qr", "use hdgemm.linalg.qr"),
     (hdgemm.cluster, "multply", "did you mean multiply?"),
     (hdgemm.decomposition, "pac_", "")],
)  # fmt: skip
def test_a_misspelt_name_names_the_nearest(module, name, advice):
    with pytest.raises(AttributeError, match=re.escape(f"'{name}'") + ".*" + re.escape(advice)):
        getattr(module, name)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [("ouput", "did you mean out?"), ("host_memory", "but an option"),
     ("host_memry", "did you mean options=hdgemm.Options(host_memory=1)?"),
     ("zzz", "unexpected keyword argument 'zzz'")],
)  # fmt: skip
def test_a_misspelt_keyword_names_the_nearest(keyword, advice):
    with pytest.raises(TypeError, match=re.escape(advice)) as caught:
        hdgemm.matmul([[1.0]], [[1.0]], **{keyword: 1})
    assert isinstance(caught.value, hdgemm.HdgemmError)


@pytest.mark.parametrize("call", [hdgemm.Options, hdgemm.set_options])
def test_a_misspelt_option_names_the_nearest(call):
    with pytest.raises(hdgemm.InputTypeError, match=r"host_memry: did you mean host_memory\?"):
        call(host_memry=1)


def test_a_module_is_imported_without_advice():
    code = "import sys; from hdgemm import units; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    from hdgemm import blas  # noqa: F401 - also a module of scipy.linalg


def test_another_name_of_linalg_is_refused_without_advice():
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = hdgemm.linalg.nothing
