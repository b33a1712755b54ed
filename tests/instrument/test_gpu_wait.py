"""The wait of a GPU for other ranks, from CUDA events: read when they have completed, and once a second."""

from __future__ import annotations

import pytest

from watchkeeper.instrument import step_clock
from watchkeeper.instrument.step_clock import GpuWait, Phase, StepClock


class Cuda:
    """torch.cuda with a stream whose time is moved by hand; it has worked off everything up to `done`."""

    def __init__(self) -> None:
        self.now, self.done, self.made = 0.0, -1.0, 0
        self.is_broken = False

    def Event(self, enable_timing: bool) -> Event:
        if self.is_broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self.at = cuda, -1.0

    def record(self) -> None:
        self.at = self._cuda.now

    def query(self) -> bool:
        return self.at <= self._cuda.done

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1000


class Hands:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(step_clock, "perf_counter", made)
    return made


def step(clock: StepClock, cuda: Cuda, hands: Hands, *, wait: float) -> None:
    """A step of 1 s on the host, at whose end the GPU waits for others."""
    clock.enter(Phase.BACKWARD)
    assert clock.gpu_wait is not None
    clock.gpu_wait.record_sent()
    cuda.now += wait
    hands.now += 1.0
    clock.leave()
    clock.end_step(hands.now)


def test_a_wait_is_measured_a_step_later_and_is_not_compute_time(hands: Hands) -> None:
    clock, cuda = StepClock(), Cuda()
    clock.gpu_wait = GpuWait(cuda)
    step(clock, cuda, hands, wait=0.4)
    step(clock, cuda, hands, wait=0.4)
    assert clock.gpu_wait.seconds == 0.0
    cuda.done = cuda.now
    step(clock, cuda, hands, wait=0.4)
    assert clock.gpu_wait.seconds == pytest.approx(0.4)
    assert clock.compute_seconds(hands.now) == 1.0
    for _ in range(4):
        step(clock, cuda, hands, wait=0.4)
    assert clock.compute_seconds(hands.now) == pytest.approx(0.6)


def test_work_after_the_all_reduce_does_not_count_as_wait(hands: Hands) -> None:
    cuda = Cuda()
    wait = GpuWait(cuda)
    assert wait.record_sent()
    cuda.now += 0.4
    wait.record_reduced()
    # Clipping, on the same stream.
    cuda.now += 0.3
    wait.read_wait()
    cuda.done = cuda.now
    assert wait.read_wait() == pytest.approx(0.4)
    assert not wait.record_sent()
    hands.now += 2.0
    assert wait.record_sent()


def test_one_step_per_second_is_measured(hands: Hands) -> None:
    cuda = Cuda()
    wait = GpuWait(cuda)
    cuda.done = 1e9
    for _ in range(1000):
        wait.record_sent()
        wait.read_wait()
        hands.now += 0.01
    # Two events each for ten seconds, and a step or two until each pair is read.
    assert 16 <= cuda.made <= 22


def test_a_failed_gpu_keeps_the_last_wait_and_does_not_affect_the_step(hands: Hands) -> None:
    clock, cuda = StepClock(), Cuda()
    clock.gpu_wait = GpuWait(cuda)
    cuda.is_broken = True
    step(clock, cuda, hands, wait=0.4)
    assert clock.steps == 1
    assert clock.gpu_wait.seconds == 0.0
