"""Options as users write them first, and what a notebook shows."""

import numpy as np
import pytest
from typer.testing import CliRunner

import hdgemm
from hdgemm.cli.app import app
from hdgemm.errors import DeviceUnavailableError, InputError, InputTypeError
from hdgemm.pipeline.devices import cuda, opencl, registry
from hdgemm.pipeline.devices.registry import DeviceInfo


@pytest.mark.parametrize(
    "call", [hdgemm.matmul, hdgemm.multiply, hdgemm.linalg.solve, hdgemm.linalg.cholesky]
)
def test_an_option_as_a_keyword_says_where_it_belongs(call):
    with pytest.raises(InputTypeError) as caught:
        call(np.eye(2), np.eye(2), host_memory="1GB")
    assert "options=hdgemm.Options(host_memory='1GB')" in str(caught.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'memory'"):
        call(np.eye(2), np.eye(2), memory="1GB")


@pytest.mark.parametrize("text", ["60", " 1.5 ", "0100"])
def test_a_size_without_its_unit_is_asked_for(text):
    with pytest.raises(InputError, match=f"write the unit, '{text.strip()}MB'"):
        hdgemm.Options(host_memory=text)
    assert hdgemm.Options(host_memory=60).host_bytes == 60
    assert hdgemm.Options(host_memory="60B").host_bytes == 60
    assert hdgemm.Options(device_memory="2000000000").device_bytes == 2 * 10**9


def test_the_command_line_asks_for_the_unit(tmp_path):
    np.save(tmp_path / "A.npy", np.eye(3))
    command = ["multiply", f"{tmp_path}/A.npy", f"{tmp_path}/A.npy", "--host-memory", "60"]
    done = CliRunner().invoke(app, [*command, "--out", f"{tmp_path}/C.npy"])
    assert isinstance(done.exception, InputError)
    assert "60MB" in str(done.exception)


def listed(monkeypatch, cuda_names, opencl_names, *, note=""):
    for library, names in ((cuda, cuda_names), (opencl, opencl_names)):
        infos = [DeviceInfo(name, "", 1, not note, note, accelerator=True) for name in names]
        monkeypatch.setattr(library, "list_devices", lambda infos=infos: infos)


def test_gpu_names_all_accelerators_once(monkeypatch):
    listed(monkeypatch, ["cuda:0", "cuda:1"], ["opencl:0"])
    assert registry.parts_of("gpu") == ("cuda:0", "cuda:1")
    listed(monkeypatch, [], ["opencl:0", "opencl:1"])
    assert registry.parts_of("gpu") == ("opencl:0", "opencl:1")
    listed(monkeypatch, ["cuda:0"], [], note="no driver is loaded")
    with pytest.raises(DeviceUnavailableError, match="cuda:0: no driver is loaded"):
        hdgemm.matmul(np.eye(3), np.eye(3), options=hdgemm.Options(devices="gpu"))
    processor = DeviceInfo("opencl:0", "", 1, note="not tuned: hdgemm tune --device opencl:0")
    monkeypatch.setattr(opencl, "list_devices", lambda: [processor])
    with pytest.raises(DeviceUnavailableError, match=r"opencl:0: a CPU, no accelerator\)"):
        registry.parts_of("gpu")


def test_notebooks_show_tables(tmp_path):
    np.save(tmp_path / "A<b>.npy", np.ones((30, 20), np.float32))
    options = hdgemm.Options(host_memory="64MB")
    verified = hdgemm.verify(np.eye(3), np.eye(3), np.eye(3))
    with hdgemm.open(tmp_path / "A<b>.npy") as m, hdgemm.Session(options) as session:
        session.device("host", options)
        for shown, words in (
            (m, ("30×20", "float32", "2.40 kB", "A&lt;b&gt;")),
            (m.T, ("20×30", "<td>F</td>")),
            (options, ("host_memory", "64.0 MB", "default")),
            (session, ("host", "open", "64.0 MB")),
            (verified, ("the product is right", "rounds")),
            (hdgemm.devices(), ("host", "cores")),
        ):
            text = shown._repr_html_()
            assert text.count("<table>") == text.count("</table>") > 0
            assert all(word in text for word in words), text
