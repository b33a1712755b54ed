"""NVLink metrics by link: state and traffic, and GPUs without NVLink."""

from __future__ import annotations

from tests.agent.conftest import MakeFake
from tests.agent.reading import reader


def test_each_nvlink_has_its_state_and_traffic(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, "NvLinkState.0", 1)
    fake.tell(0, "NvLinkState.17", 0)
    fake.tell(0, "Field.138", 2)
    fake.tell(0, "Field.139.17", 3)
    with reader(fake) as child:
        values = child.ask()["values"]
    assert values["watchkeeper_gpu_nvlink_up"] == {"0": 1, "17": 0}
    assert values["watchkeeper_gpu_nvlink_bytes_total"] == {"0.transmitted": 2048, "17.received": 3072}


def test_a_gpu_without_nvlink_has_no_such_series_and_no_fault(machine: MakeFake) -> None:
    with reader(machine(1)) as child:
        answer = child.ask()
    assert not [name for name in answer["values"] if "nvlink" in name and name.startswith("watchkeeper")]
    assert not answer.get("faults")
