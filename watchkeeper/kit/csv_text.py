"""Shared rules for reading CSV: the separator of the cells, and which cells are numbers."""

from __future__ import annotations

import re

SEPARATORS = ",;\t|"
# Decimal, as spreadsheets write it: Python would also read 1_000, inf and nan.
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")


def detect_separator(header: str) -> str:
    return max(SEPARATORS, key=header.count)
