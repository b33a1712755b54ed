"""Stage 1: find targets, scrape them on a schedule, hand over samples.

In: targets of service discovery, Prometheus configurations, pages. Out: samples with `up` and
`scrape_duration_seconds`. Never here: what a value means, or where it is stored.
"""
