"""compose.yaml confines each container."""

import pytest

from tests.docs.pages import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML comes with Dask: pip install '.[dev]'")
SERVICES = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("name", SERVICES)
def test_each_container_is_confined(name):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp" in service["tmpfs"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert name == "dask-worker" or "healthcheck" in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
