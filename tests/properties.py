"""Properties that hypothesis tries: the same examples in every run, and new ones in `make explore`.

A test that fails must mean the commit and not the dice. What `make explore` finds becomes an `@example` of its test.
"""

from __future__ import annotations

import os

import hypothesis

IS_EXPLORING = os.environ.get("EXPLORE") == "1"
# What a property gets that does not say how many examples it needs.
USUAL = 100
TIMES_AS_MANY = 10


def examples(count: int) -> hypothesis.settings:
    """The decorator of a property that needs more examples than usual, or has dear ones."""
    return hypothesis.settings(max_examples=count * TIMES_AS_MANY if IS_EXPLORING else count)


def load_profile() -> None:
    """Without a database, because what an earlier run found is no part of the commit."""
    hypothesis.settings.register_profile(
        "watchkeeper",
        max_examples=USUAL * TIMES_AS_MANY if IS_EXPLORING else USUAL,
        derandomize=not IS_EXPLORING,
        database=None,
        # How long an example takes is no property of ours on a machine that others use as well.
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("watchkeeper")
