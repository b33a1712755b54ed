"""Reads fake GPUs with a real reader process, and waits for the sampler."""

from __future__ import annotations

import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.fake_nvml import driver
from watchkeeper.agent.gpus.reader_link import ReaderLink
from watchkeeper.agent.gpus.reader_watch import ReaderLimits
from watchkeeper.agent.gpus.sampler import NvmlEvent, Sampler, SamplerSettings
from watchkeeper.kit import clock
from watchkeeper.model import fleet
from watchkeeper.readers.nvml import choice

NODE = fleet.Place("main", node="n1")
EVERYTHING = ("fast", "profile", "slow", "rare")
# Generous: a busy machine must not turn a slow child into a hung one.
PATIENCE_SECONDS = 60.0


class Reader:
    """One reader child, asked and heard in turn."""

    def __init__(
        self, fake: driver.FakeNvml, names: Sequence[str] | None, environment: Mapping[str, str] | None
    ) -> None:
        default = choice.choose_families().families
        nvml_families = default if names is None else [choice.load_dcgm_families()[name][0] for name in names]
        self.link = ReaderLink(nvml_families, events=True, environment=environment or fake.environment)
        self._messages: list[dict[str, Any]] = []
        self.opening = self.hear()

    def hear(self) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self.link.fileno(), select.POLLIN)
        while not self._messages:
            assert poll.poll(PATIENCE_SECONDS * 1000), f"no answer; the reader is in {self.link.current_call()}"
            self._messages += self.link.read_messages()
        return self._messages.pop(0)

    def ask(self, index: int = 0, *cadences: str) -> dict[str, Any]:
        self.link.request_reading(index, cadences or EVERYTHING)
        return self.hear()


@contextmanager
def reader(
    fake: driver.FakeNvml, names: Sequence[str] | None = None, *, environment: Mapping[str, str] | None = None
) -> Iterator[Reader]:
    opened = Reader(fake, names, environment)
    try:
        yield opened
    finally:
        opened.link.abandon()
        assert opened.link.wait_for_exit(PATIENCE_SECONDS)


@contextmanager
def sampling(fake: driver.FakeNvml, limits: ReaderLimits, facts: list[NvmlEvent] | None = None) -> Iterator[Sampler]:
    settings = SamplerSettings(NODE, "n1", limits=limits, environment=fake.environment)
    sampler = Sampler(settings, clock.ScaledClock(), on_event=None if facts is None else facts.append)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def shown(sampler: Sampler, name: str = "DCGM_FI_DEV_GPU_TEMP") -> dict[str, float]:
    """UUID to number of one family on the page."""
    line = re.compile(rf'^{name}{{.*UUID="([^"]+)".*}} (\S+)$', re.MULTILINE)
    return {uuid: float(number) for uuid, number in line.findall(sampler.page().decode())}


def causes(sampler: Sampler) -> set[tuple[str, str | None]]:
    return {(fault.cause, fault.place.gpu) for fault in sampler.faults()}
