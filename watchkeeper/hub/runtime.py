"""What all services of a hub share: its settings, the time, its own metrics, and news for open pages.

Whoever starts a hub makes one `Runtime`; a recording that is played has one as well. Services and parts of the web
application take it first.
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
