"""Limits of label sets; `head` refuses a new series that exceeds one."""

from __future__ import annotations

import itertools

from watchkeeper import errors
from watchkeeper.model import labels as label_sets

MAX_LABELS = 64
MAX_NAME_LENGTH = 512
MAX_VALUE_LENGTH = 4096


def check_label_limits(labels: label_sets.Labels) -> None:
    """StoreError for a label set that is too large for the index, or that cannot be written to a file."""
    text = "".join(itertools.chain.from_iterable(labels.pairs))
    if len(labels.pairs) <= MAX_LABELS and len(text) <= MAX_NAME_LENGTH and text.isascii():
        return
    for unit, actual, limit in (
        ("labels", len(labels.pairs), MAX_LABELS),
        ("characters in a label name", max([len(name) for name, _ in labels.pairs], default=0), MAX_NAME_LENGTH),
        ("characters in a label value", max([len(value) for _, value in labels.pairs], default=0), MAX_VALUE_LENGTH),
    ):
        if actual > limit:
            raise errors.StoreError(
                f"series {errors.quote(str(labels))} has {actual} {unit}, the limit is {limit}",
                remedy="Drop or shorten the label with metric_relabel_configs",
            )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise errors.StoreError(
            f"series {errors.quote(str(labels))} has a label that is not Unicode text",
            remedy="Correct the label in its exporter",
        ) from error
