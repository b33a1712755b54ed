"""What all services of a hub share: settings, clock, own metrics, and change notifications for open pages.

`cli` and `drill` create a `Runtime` for each hub; a replayed recording has one too. It is the first parameter of
services.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchkeeper import __version__
from watchkeeper.config.settings import Settings
from watchkeeper.kit import broadcast, own_metrics
from watchkeeper.kit.clock import Clock


@dataclass(frozen=True, slots=True)
class Runtime:
    settings: Settings
    clock: Clock
    metrics: own_metrics.Registry = field(default_factory=own_metrics.Registry)
    changes: broadcast.Broadcast = field(default_factory=broadcast.Broadcast)
    version: str = __version__
