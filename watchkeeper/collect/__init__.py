"""Stage 1: find the fleet, read it on a schedule, hand over samples and events.

Comes in: targets and sources. Goes out: samples with `up` and `scrape_duration_seconds`, and events.
Never here: what a value means, or where it is kept.
"""
