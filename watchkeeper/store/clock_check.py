"""Whether the store is ahead of the clock: after a clock was put back, samples of now are too old to be taken.

The hub asks for its status. A start sets aside what is ahead (`durable.open_store`), so a restart is the way out.
"""

from __future__ import annotations

from watchkeeper.store.head import MAX_AHEAD_MS


def problem(newest_ms: int | None, now_ms: int) -> str:
    """A sentence for people, or an empty text while the clock and the newest sample agree."""
    if newest_ms is None or newest_ms <= now_ms + MAX_AHEAD_MS:
        return ""
    hours = (newest_ms - now_ms) / 3_600_000
    return (
        f"samples: the newest is {hours:.1f} h ahead of the clock, so those of now are refused. If the clock is right"
        " now, restart the hub, which sets aside what is ahead"
    )
