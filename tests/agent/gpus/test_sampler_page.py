"""The page shows what was read, and nothing that is stale."""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.agent.gpus.gpu_page import GpuPage
from watchkeeper.agent.gpus.gpu_samples import GpuSample, MigInstanceSample, SampleMerger, Snapshot, add_xid
from watchkeeper.readers import exposition
from watchkeeper.readers.nvml import choice
from watchkeeper.readers.nvml.families import Cadence

FRESHNESS = {Cadence.FAST: 2.0, Cadence.PROFILE: 2.0, Cadence.SLOW: 20.0, Cadence.RARE: 600.0}
IDENTITY = {"uuid": "GPU-1", "pci": "00000000:5D:00.0", "model": "NVIDIA H200", "minor": "3", "text.driver": "580"}
LABELS = (
    'gpu="0",UUID="GPU-1",pci_bus_id="00000000:5D:00.0",device="nvidia3",modelName="NVIDIA H200",'
    'Hostname="n1",DCGM_FI_DRIVER_VERSION="580"'
)


def page() -> GpuPage:
    return GpuPage(choice.choose_families().families, hostname="n1", fresh_seconds=FRESHNESS)


def sample(at: float = 100.0, **values: float) -> GpuSample:
    return GpuSample(0, IDENTITY, dict.fromkeys(FRESHNESS, at), values)


def lines(text: bytes, name: str) -> list[str]:
    return [line for line in text.decode().splitlines() if line.startswith(name + "{")]


def test_a_line_equals_that_of_dcgm_exporter() -> None:
    gpu = sample(DCGM_FI_DEV_GPU_TEMP=61, DCGM_FI_DEV_POWER_USAGE=692.5)
    text = page().render(Snapshot((gpu,)), 100.5).decode()
    assert text == (
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU core temperature (in C).\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 61\n"
        "# HELP DCGM_FI_DEV_POWER_USAGE Board power draw (averaged) (in W).\n# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 692.500000\n"
    )


def test_a_gpu_that_was_not_read_for_two_intervals_is_absent() -> None:
    writer, snapshot = page(), Snapshot((sample(DCGM_FI_DEV_GPU_TEMP=61, DCGM_FI_DEV_SLOWDOWN_TEMP=89),))
    assert lines(writer.render(snapshot, 101.9), "DCGM_FI_DEV_GPU_TEMP")
    assert writer.render(snapshot, 102.1) == b""


def test_a_slow_value_is_shown_for_two_of_its_own_intervals() -> None:
    gpu = sample(DCGM_FI_DEV_GPU_TEMP=61, DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION=5)
    later = replace(gpu, read_at={**gpu.read_at, Cadence.FAST: 119.0})
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    assert lines(page().render(Snapshot((later,)), 119.5), name)
    assert not lines(page().render(Snapshot((later,)), 120.5), name)


def test_a_page_is_cached_until_one_of_its_values_expires() -> None:
    writer, snapshot = page(), Snapshot((sample(DCGM_FI_DEV_GPU_TEMP=61),))
    first = writer.render(snapshot, 100.0)
    assert writer.render(snapshot, 101.0) is first
    assert writer.render(replace(snapshot), 101.0) is not first


def test_a_mig_instance_has_its_id_and_profile_as_labels() -> None:
    part = MigInstanceSample(5, "3g.71gb", {"DCGM_FI_DEV_FB_USED": 1024})
    gpu = replace(sample(DCGM_FI_DEV_GPU_TEMP=61), mig_instances=(part,))
    text = page().render(Snapshot((gpu,)), 100.0)
    sliced = LABELS.replace(',Hostname="n1"', ',GPU_I_PROFILE="3g.71gb",GPU_I_ID="5",Hostname="n1"')
    assert lines(text, "DCGM_FI_DEV_FB_USED") == [f"DCGM_FI_DEV_FB_USED{{{sliced}}} 1024"]
    assert lines(text, "DCGM_FI_DEV_GPU_TEMP") == [f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 61"]


def test_xids_are_shown_as_the_last_code_and_as_counts() -> None:
    quiet = replace(sample(DCGM_FI_DEV_GPU_TEMP=61), last_xid=0)
    assert lines(page().render(Snapshot((quiet,)), 100.0), "DCGM_FI_DEV_XID_ERRORS")[0].endswith(
        ',err_code="0",err_msg="No Error"} 0'
    )
    loud = add_xid(add_xid(quiet, 31), 31)
    text = page().render(Snapshot((loud,)), 100.0)
    assert lines(text, "DCGM_FI_DEV_XID_ERRORS")[0].endswith("} 31")
    assert lines(text, "watchkeeper_gpu_xid_errors_total")[0].endswith(',xid="31"} 2')
    unknown = replace(quiet, last_xid=None)
    assert not lines(page().render(Snapshot((unknown,)), 100.0), "DCGM_FI_DEV_XID_ERRORS")


def test_parts_and_faults_have_their_labels() -> None:
    gpu = replace(sample(), values={"watchkeeper_gpu_nvlink_errors_total": {"3.replay": 7}})
    text = page().render(Snapshot((gpu,), (("driver_call_hung", None), ("gpu_fell_off_bus", "GPU-2"))), 100.0)
    assert lines(text, "watchkeeper_gpu_nvlink_errors_total")[0].endswith(',link="3",kind="replay"} 7')
    assert lines(text, "watchkeeper_gpu_fault") == [
        'watchkeeper_gpu_fault{cause="driver_call_hung",Hostname="n1"} 1',
        'watchkeeper_gpu_fault{cause="gpu_fell_off_bus",UUID="GPU-2",Hostname="n1"} 1',
    ]


def test_an_answer_replaces_the_values_that_were_read_and_keeps_the_others() -> None:
    merger = SampleMerger({family.name: family.cadence for family in choice.choose_families().families})
    before = sample(DCGM_FI_DEV_GPU_TEMP=61, DCGM_FI_DEV_FB_USED=1, DCGM_FI_DEV_PCIE_REPLAY_COUNTER=4)
    answer = {"gpu": 0, "values": {"DCGM_FI_DEV_GPU_TEMP": 62}, "errors": {"nvmlDeviceGetMemoryInfo_v2": "UNKNOWN"}}
    after = merger.merge(before, answer, cadences=[Cadence.FAST, Cadence.PROFILE], read_at=101.0)
    assert after.values == {"DCGM_FI_DEV_GPU_TEMP": 62, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 4}
    assert (after.read_at[Cadence.FAST], after.read_at[Cadence.PROFILE]) == (101.0, 100.0)
    assert after.errors == {("nvmlDeviceGetMemoryInfo_v2", "UNKNOWN"): 1}
    lost = merger.merge(after, {"gpu": 0, "lost": "nvmlDeviceGetTemperature"}, cadences=[Cadence.FAST], read_at=102.0)
    assert page().render(Snapshot((lost,)), 102.0) == b""


def test_watchkeepers_parser_reads_the_page() -> None:
    gpu = replace(sample(DCGM_FI_DEV_GPU_TEMP=61), identity={**IDENTITY, "model": 'a "b" \\ c'})
    parser = exposition.ExpositionParser()
    read = parser.parse(page().render(Snapshot((gpu,)), 100.0))
    (handle,) = read.handles
    assert parser.labels[handle]["modelName"] == 'a "b" \\ c'
    assert list(read.values) == [61.0]
