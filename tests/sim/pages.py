"""A small and strict parser of exporter pages for these tests, independent of the product's."""

from __future__ import annotations

import re

# DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-…",…} 1980
SAMPLE = re.compile(r'([A-Z][A-Z0-9_]+)\{((?:[A-Za-z_]+="[^"\\]*",?)+)\} (-?\d+(?:\.\d{6})?)\Z')
LABEL = re.compile(r'([A-Za-z_]+)="([^"]*)"')

Sample = tuple[str, dict[str, str], float]


def samples(page: bytes) -> list[Sample]:
    samples = []
    for line in page.decode().splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            samples.append((match[1], dict(LABEL.findall(match[2])), float(match[3])))
    return samples


def by_gpu(page: bytes, name: str) -> dict[int, float]:
    """One metric of a page: GPU index → value."""
    return {int(labels["gpu"]): value for metric, labels, value in samples(page) if metric == name}
