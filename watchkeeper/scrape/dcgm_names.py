"""One spelling for metrics and labels whose names differ between versions of GPU exporters.

Rules, pages and checks use the names of dcgm-exporter up to 4.8.2. Newer versions write the label `hostname` in lower
case, and DCGM 4.6 renames some fields: both are translated once for each new series, after the job's rules.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from watchkeeper.catalogue import pack
from watchkeeper.model.labels import METRIC_NAME

DCGM_PREFIX = "DCGM_"
NODE_LABEL = "Hostname"


def is_dcgm(name: str) -> bool:
    return name.startswith(DCGM_PREFIX)


def canonical_name(name: str) -> str:
    return names_before_4_6().get(name, name) if is_dcgm(name) else name


def canonical_labels(labels: Mapping[str, str], *, node: str | None) -> Mapping[str, str]:
    """The series with canonical names; `node` is where it was scraped, for exporters without a node label."""
    name = labels.get(METRIC_NAME, "")
    if not is_dcgm(name):
        return labels
    changed = dict(labels)
    changed[METRIC_NAME] = canonical_name(name)
    if not changed.get(NODE_LABEL):
        hostname = changed.pop("hostname", "") or node
        if hostname:
            changed[NODE_LABEL] = hostname
    return changed


@functools.cache
def names_before_4_6() -> Mapping[str, str]:
    """DCGM 4.6 name to the earlier name; the value means the same under both."""
    rows = pack.load("dcgm_fields.csv", lambda cells: (cells["name_from_4_6"], cells["name"]))
    before = {old for _, old in rows}
    return {new: old for new, old in rows if new and new not in before}
