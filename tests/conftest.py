"""What every test gets: quick, repeatable properties."""

from __future__ import annotations

import os

import hypothesis

# Derandomised where a failure must mean the commit and not the dice; on a desk new examples are welcome.
hypothesis.settings.register_profile("desk", max_examples=100, deadline=None)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("desk"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "desk")
