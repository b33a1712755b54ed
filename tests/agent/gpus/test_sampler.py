"""The sampler with real reader processes and a driver that fails or hangs."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.agent.reading import causes, sampling, shown
from tests.support.fake_nvml import driver
from tests.support.fake_nvml.driver import UUID
from tests.support.waiting import until
from watchkeeper.agent.gpus.reader_watch import ReaderLimits
from watchkeeper.agent.gpus.sampler import NvmlEvent, Sampler

# Half of it is the deadline of an answer: long for a driver that answers in microseconds, on a busy machine too.
# A probe that hangs while it starts is waited for to the end of `start`.
LIMITS = ReaderLimits(interval_seconds=1.2, start_seconds=4.0, first_pause_seconds=0.3, max_pause_seconds=1.0)
FIFTEEN = {UUID(index) for index in range(16) if index != 7}


def rest_is_shown(sampler: Sampler) -> bool:
    return set(shown(sampler)) >= FIFTEEN


@pytest.mark.alone
def test_a_hung_gpu_does_not_affect_the_samples_of_the_other_fifteen(machine: MakeFake) -> None:
    fake = machine(16)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: len(shown(sampler)) == 16)
        fake.tell(7, Temperature=driver.HANG)
        hung_at = time.monotonic()
        until(lambda: rest_is_shown(sampler) and causes(sampler))
        (fault,) = sampler.faults()
        assert (fault.cause, fault.place.gpu) == ("driver_call_hung", UUID(7))
        assert fault.evidence.startswith(f"nvmlDeviceGetTemperature on {UUID(7)}")
        until(lambda: not rest_is_shown(sampler) or time.monotonic() >= hung_at + 4 * LIMITS.interval_seconds)
        assert rest_is_shown(sampler)
        assert set(shown(sampler)) == FIFTEEN, "an old number was repeated"


@pytest.mark.slow
def test_a_gpu_that_stops_hanging_is_found_by_a_probe_and_shown_again(machine: MakeFake) -> None:
    fake = machine(2)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: len(shown(sampler)) == 2)
        fake.tell(0, PowerUsage=driver.HANG)
        until(lambda: causes(sampler) == {("driver_call_hung", UUID(0))})
        until(lambda: set(shown(sampler)) == {UUID(1)})
        fake.tell(0, PowerUsage=None)
        until(lambda: not causes(sampler) and len(shown(sampler)) == 2)


@pytest.mark.slow
def test_a_lost_gpu_is_a_fault_and_its_values_are_absent(machine: MakeFake) -> None:
    fake = machine(2)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: len(shown(sampler)) == 2)
        fake.tell(1, all=driver.GPU_IS_LOST)
        until(lambda: causes(sampler) == {("gpu_fell_off_bus", UUID(1))})
        until(lambda: set(shown(sampler)) == {UUID(0)})
        until(lambda: shown(sampler, "watchkeeper_gpu_fault") == {UUID(1): 1.0})


@pytest.mark.slow
def test_a_gpu_that_nvml_no_longer_lists_is_missing_for_the_next_reader(machine: MakeFake) -> None:
    fake = machine(3)
    with sampling(fake, ReaderLimits(interval_seconds=0.3, renewal_seconds=0.5)) as sampler:
        until(lambda: len(shown(sampler)) == 3)
        fake.tell(driver.EVERY, Count=2)
        until(lambda: ("gpu_missing", UUID(2)) in causes(sampler))
        until(lambda: set(shown(sampler)) <= {UUID(0), UUID(1)})


@pytest.mark.slow
def test_a_gpu_that_cannot_be_opened_is_a_fault_and_the_other_is_read(machine: MakeFake) -> None:
    fake = machine(2)
    fake.tell(0, HandleByIndex=driver.UNKNOWN_ERROR)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: set(shown(sampler)) == {UUID(1)} and sampler.faults())
        (fault,) = sampler.faults()
        assert (fault.cause, fault.place.gpu) == ("unknown", None)
        assert fault.evidence == "GPU 0 cannot be opened: nvmlDeviceGetHandleByIndex_v2 failed: UNKNOWN"
        fake.tell(0, HandleByIndex=None)
        until(lambda: len(shown(sampler)) == 2 and not sampler.faults())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "cause"),
    [(driver.VERSION_MISMATCH, "driver_library_mismatch"), (driver.DRIVER_NOT_LOADED, "driver_not_loaded")],
)
def test_a_driver_that_cannot_be_opened_is_a_fault_until_it_opens(machine: MakeFake, result: str, cause: str) -> None:
    fake = machine(1)
    fake.tell(driver.EVERY, Init=result)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: causes(sampler) == {(cause, None)})
        until(lambda: b"watchkeeper_gpu_fault" in sampler.page())
        fake.tell(driver.EVERY, Init=None)
        until(lambda: not causes(sampler) and shown(sampler))


@pytest.mark.slow
def test_a_driver_that_hangs_completely_is_a_fault_of_the_node(machine: MakeFake) -> None:
    fake = machine(2)
    with sampling(fake, ReaderLimits(interval_seconds=0.4, start_seconds=4.0)) as sampler:
        until(lambda: len(shown(sampler)) == 2)
        fake.tell(driver.EVERY, all=driver.HANG)
        until(lambda: ("driver_call_hung", None) in causes(sampler))
        evidence = " ".join(fault.evidence for fault in sampler.faults())
        assert "nvml" in evidence or "no reader process answers" in evidence


@pytest.mark.slow
def test_a_reader_that_is_killed_is_replaced(machine: MakeFake) -> None:
    fake = machine(1)
    with sampling(fake, LIMITS) as sampler:
        until(lambda: shown(sampler))
        (child,) = children()
        os.kill(child, 9)
        until(lambda: children() and children() != [child])
        fake.tell(0, Temperature=55)
        until(lambda: shown(sampler) == {UUID(0): 55.0})


@pytest.mark.slow
def test_an_xid_is_passed_on_and_shown(machine: MakeFake) -> None:
    fake, facts = machine(2), list[NvmlEvent]()
    with sampling(fake, LIMITS, facts) as sampler:
        until(lambda: len(shown(sampler)) == 2)
        fake.raise_event(1, 8, 31)
        until(lambda: facts)
        assert (facts[0].kind, facts[0].uuid, facts[0].detail) == ("xid", UUID(1), 31)
        until(lambda: shown(sampler, "DCGM_FI_DEV_XID_ERRORS") == {UUID(0): 0.0, UUID(1): 31.0})


@pytest.mark.slow
def test_the_inventory_has_the_gpus_that_answered(machine: MakeFake) -> None:
    with sampling(machine(2), LIMITS) as sampler:
        until(lambda: len(sampler.gpus()) == 2)
        first = sampler.gpus()[0]
    assert (first.uuid, first.index, first.pci, first.model) == (UUID(0), 0, "0000:10:00", "NVIDIA H200")


@pytest.mark.slow
def test_a_sampler_leaves_nothing_behind(machine: MakeFake) -> None:
    files_before = len(os.listdir("/proc/self/fd"))
    with sampling(machine(1), LIMITS) as sampler:
        until(lambda: shown(sampler))
    assert not children()
    assert len(os.listdir("/proc/self/fd")) == files_before


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_memory_stays_flat_over_fifty_readers(machine: MakeFake) -> None:
    pids: set[int] = set()

    def readers(count: int) -> bool:
        pids.update(children())
        return len(pids) >= count

    with sampling(machine(2), ReaderLimits(interval_seconds=0.05, renewal_seconds=0.0)) as sampler:
        until(lambda: readers(10), timeout_seconds=120)
        memory, files = resident_kib(), len(os.listdir("/proc/self/fd"))
        until(lambda: readers(60), timeout_seconds=240)
        assert resident_kib() - memory < 2048
        assert abs(len(os.listdir("/proc/self/fd")) - files) <= 6
        assert shown(sampler)


def children() -> list[int]:
    """The children of this operating-system process that still run."""
    children = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end between the list and the look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += [int(pid) for pid in (task / "children").read_text().split()]
    return sorted(children)


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


@pytest.mark.slow
def test_a_sampler_that_released_its_gpus_has_no_reader_and_reads_again_later(machine: MakeFake) -> None:
    with sampling(machine(2), LIMITS) as sampler:
        until(lambda: len(shown(sampler)) == 2)
        reader = sampler._reader
        assert reader is not None
        sampler.release_gpus(True)
        until(lambda: sampler.has_released_gpus)
        assert not Path("/proc", str(reader.pid)).exists(), "a reset needs a GPU that no process has open"
        sampler.release_gpus(False)
        until(lambda: sampler._reader is not None and len(shown(sampler)) == 2)
