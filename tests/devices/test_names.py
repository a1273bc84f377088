"""Names of devices, and which ones are taken where none are given."""

from __future__ import annotations

import pytest

from lossguard.devices import names
from lossguard.devices.names import Gpu, core_list, default_devices, parse_devices
from lossguard.errors import UsageError

A, B, C = (Gpu(index=index, uuid=f"GPU-{index}", model=model) for index, model in enumerate("XXY"))


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "available_cores", lambda: tuple(range(8)))


@pytest.mark.parametrize(
    ("text", "name", "cores"),
    [("cpu:0", "cpu:0", (0,)), ("cpu:0-3", "cpu:0-3", (0, 1, 2, 3)), ("cpu:2+0+1", "cpu:0-2", (0, 1, 2))],
)
def test_cores_have_one_name(text: str, name: str, cores: tuple[int, ...]) -> None:
    (device,) = parse_devices([text])
    assert (device.name, device.cores) == (name, cores)
    assert device.environment()["OMP_NUM_THREADS"] == str(len(cores))
    assert device.environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_a_gpu_is_named_by_its_uuid() -> None:
    first, second = parse_devices(["cuda:1", "cuda:GPU-0"], gpus=lambda: (A, B))
    assert (first.name, second.name) == ("cuda:GPU-1", "cuda:GPU-0")
    assert first.environment() == {"CUDA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["cpu:0", "cpu:1", "cpu:2"],
        ["gpu:0"],
        ["cpu:"],
        ["cpu:9"],
        ["cpu:0-99"],
        ["cuda:7"],
        ["cuda:"],
        ["cpu:0", "cuda:0"],
        ["cpu:0-1", "cpu:1-2"],
        ["cuda:0", "cuda:GPU-0"],
        ["cpu:0", "cpu:1-2"],
    ],
)
def test_what_does_not_fit_is_refused(given: list[str]) -> None:
    with pytest.raises(UsageError, match="LG1001"):
        parse_devices(given, gpus=lambda: (A, B))


@pytest.mark.parametrize(
    ("gpus", "visible", "expected"),
    [
        ((A, B, C), None, ["cuda:GPU-0", "cuda:GPU-1"]),
        ((A, C), None, ["cuda:GPU-0"]),
        ((A, B), "GPU-1", ["cuda:GPU-1"]),
        ((A, B), "1,0", ["cuda:GPU-1", "cuda:GPU-0"]),
        ((A, B), "", ["cpu:0-3", "cpu:4-7"]),
        ((), None, ["cpu:0-3", "cpu:4-7"]),
    ],
)
def test_devices_that_are_taken_by_themselves(gpus: tuple[Gpu, ...], visible: str | None, expected: list[str]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found, reason = default_devices(environment, gpus=lambda: gpus)
    assert [device.name for device in found] == expected
    assert reason


def test_lists_of_cores_are_short() -> None:
    assert core_list((5, 0, 1, 2, 7)) == "0-2+5+7"
