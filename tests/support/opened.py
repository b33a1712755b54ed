"""A hub that is built and opened in one go; a server does it in steps, and answers questions in between."""

from __future__ import annotations

from watchkeeper.config import settings
from watchkeeper.hub.hub import Hub
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Samples
from watchkeeper.kit import clock
from watchkeeper.remediate import driver as drivers


def opened(chosen: settings.Settings, *, time: clock.Clock, driver: drivers.Driver | None = None) -> Hub:
    samples = Samples(Runtime(chosen, time))
    hub = Hub(samples, driver=driver)
    samples.open()
    hub.open()
    return hub
