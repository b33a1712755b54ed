"""GPU context in the agent's logs: on lines about GPUs, and on no others."""

from __future__ import annotations

import asyncio
import json
import logging
from io import StringIO
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.support.fake_nvml import driver
from tests.support.fake_nvml.driver import UUID
from tests.support.running_agent import machine as prepared
from tests.support.running_agent import running
from tests.support.waiting import until_async
from watchkeeper.agent.control import ControlSettings
from watchkeeper.agent.gpus.gpu_samples import GpuSample, Snapshot
from watchkeeper.agent.log_context import GpuContextFilter
from watchkeeper.kit import logs

GPUS = tuple(
    GpuSample(
        index,
        {"uuid": f"GPU-{index}", "pci": f"0000:1{index}:00"},
        {},
        {"DCGM_FI_DEV_GPU_TEMP": 40 + index, "DCGM_FI_DEV_POWER_USAGE": {"a": 1.0}},
        last_xid=None if index else 31,
        xids={} if index else {31: 2},
    )
    for index in range(2)
)


def states(**named: object) -> list[dict[str, object]] | None:
    made = logging.makeLogRecord(logs.fields(**named))
    GpuContextFilter(lambda: Snapshot(GPUS)).filter(made)
    gpu_states: list[dict[str, object]] | None = made.fields.get("gpu_states")
    return gpu_states


def test_a_line_about_one_gpu_has_the_state_of_that_gpu() -> None:
    expected = [{"index": 0, "uuid": "GPU-0", "temperature_celsius": 40, "xid_count": 2}]
    assert states(gpu=0) == states(gpu="GPU-0") == states(pci="0000:10:00") == expected
    assert states(gpu="GPU-1") == [{"index": 1, "uuid": "GPU-1", "temperature_celsius": 41}]
    assert states(gpu="GPU-9") == []


def test_a_line_about_the_node_has_all_states_and_other_lines_have_none() -> None:
    gpu_states = states(node="n1")
    assert gpu_states is not None
    assert [state["uuid"] for state in gpu_states] == ["GPU-0", "GPU-1"]
    assert states(cause="driver_call_hung", gpu=None) == gpu_states
    assert states(retry_seconds=5) is None


def test_a_record_without_fields_is_unchanged() -> None:
    assert GpuContextFilter(lambda: Snapshot(GPUS)).filter(logging.makeLogRecord({"msg": "x"}))


@pytest.mark.slow
def test_the_agents_log_has_the_state_of_a_gpu_when_it_failed(tmp_path: Path, machine: MakeFake) -> None:
    fake, stream = machine(2), StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormat())
    logging.getLogger().addHandler(handler)

    async def story() -> None:
        control = ControlSettings(logs_gpu_context=True)
        async with running(prepared(tmp_path), fake, control=control) as node:
            await node.until_page(lambda text: text.count("\nDCGM_FI_DEV_GPU_TEMP{") == 2)
            fake.tell(1, Temperature=driver.UNKNOWN_ERROR)
            await until_async(lambda: "driver call failed" in stream.getvalue())

    try:
        asyncio.run(story())
    finally:
        logging.getLogger().removeHandler(handler)
    assert handler.filters == []
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (state,) = next(line for line in lines if line["message"] == "driver call failed")["gpu_states"]
    assert (state["uuid"], state["index"], state["power_watts"] > 0) == (UUID(1), 1, True)
