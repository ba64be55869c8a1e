"""Which memory is near a GPU, read from a made-up /sys."""

import pytest

from hdgemm.pipeline.devices.cuda import numa
from hdgemm.pipeline.devices.cuda.numa import near, node_of, nodes


@pytest.fixture
def sysfs(tmp_path):
    def make(count, numa_node):
        for node in range(count):
            (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
        gpu = tmp_path / "bus/pci/devices/0000:3b:00.0"
        gpu.mkdir(parents=True)
        if numa_node is not None:
            (gpu / "numa_node").write_text(f"{numa_node}\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("count", "says", "node"),
    [
        (2, 1, 1),
        (2, 0, 0),
        (1, 0, None),  # one node only: nothing to choose
        (2, -1, None),  # the firmware does not say
        (2, None, None),
        (0, 1, None),
    ],
)
def test_node_of_a_gpu(sysfs, count, says, node):
    assert node_of("0000:3b:00.0", sysfs(count, says)) == node


def test_nodes_in_order(sysfs):
    assert nodes(sysfs(12, None)) == tuple(range(12))


def test_an_unknown_gpu_has_no_node(sysfs):
    assert node_of("0000:00:00.0", sysfs(2, 1)) is None


@pytest.mark.parametrize("node", [None, 0, 63, 64, 500])
def test_preferring_a_node_never_fails(node):
    """The system may refuse a node it does not have, or the call altogether."""
    before = numa._policy()
    with near(node):
        assert bytearray(1 << 16) is not None
    after = numa._policy()
    assert (before and (before[0], list(before[1]))) == (after and (after[0], list(after[1])))


def test_a_node_that_exists_is_preferred_while_it_lasts():
    if numa._policy() is None:
        pytest.skip("this system does not tell its memory policy")
    before = numa._policy()[0]
    with near(0):
        mode, mask = numa._policy()
        if (mode, mask[0]) != (1, 1):
            pytest.skip("this system does not let a thread set its memory policy")
    assert numa._policy()[0] == before
