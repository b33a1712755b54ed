"""Why Kubernetes placed no pod: the scheduler's own list of reasons, weighed by what each taint means.

Every cluster has nodes that no GPU pod tolerates, such as those of the control plane. They stand in the
same sentence as the real reason and are no reason themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.doctor.facts import DoctorFacts, Sighting
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.doctor.signatures import lookup

# 3 node(s) had untolerated taint {nvidia.com/gpu: present}      2 node(s) had taint {key: value}, that the pod didn't …
TAINT = re.compile(r"(?P<count>\d+) node\(s\) had (?:untolerated )?taints?(?:\(s\))?(?: \{(?P<taint>[^}]*)\})?")
OTHER_REASON = re.compile(
    r"(?i)Insufficient (?:nvidia|amd|gpu)|didn't match Pod's node affinity|didn't match node selector"
)
LARGEST = re.compile(
    r"max node group size reached|in backoff after failed scale-up|max cluster \w+(?: \w+)? limit reached"
)
FULL = re.compile(rf"(?i)Insufficient (?:nvidia|amd|gpu)|{LARGEST.pattern}")
ON_PURPOSE = ("node-role.kubernetes.io/", "CriticalAddonsOnly")
NODE_STATE = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|out-of-service)")


def taints(facts: DoctorFacts) -> Iterable[Opinion]:
    """Taints that matter: not those of the control plane, and not those that say a node is down."""
    down: list[Sighting] = []
    real: list[Sighting] = []
    for sighting in facts.of("k8s-untolerated-taint"):
        keys = [match["taint"] or "" for match in TAINT.finditer(sighting.text)]
        if any(NODE_STATE.search(key) for key in keys):
            down.append(sighting)
        if any(not NODE_STATE.search(key) and not key.startswith(ON_PURPOSE) for key in keys):
            real.append(sighting)
    sign = lookup("k8s-untolerated-taint")
    if real:
        unnamed = all("{" not in sighting.text for sighting in real)
        shared = any(OTHER_REASON.search(sighting.text) for sighting in real)
        confidence = sign.confidence if not shared else 0.6 if unnamed else 0.82
        yield opinion(sign.cause, confidence, sign.why, on=real[:MAX_EVIDENCE])
    elif facts.has("k8s-untolerated-taint") and not down:
        why = "Only nodes of the control plane, or of other purposes, were passed over for their taint."
        yield opinion(sign.cause, 0.35, why, on=facts.of("k8s-untolerated-taint")[:MAX_EVIDENCE])
    if down:
        why = "Nodes are tainted as not ready or unreachable: they do not answer, and no toleration cures that."
        yield opinion("node_down", 0.72, why, on=down[:MAX_EVIDENCE])


def selectors(facts: DoctorFacts) -> Iterable[Opinion]:
    """Selectors that nothing matches; where the same sentence names groups or nodes that are full, those do match."""
    sightings = facts.of("k8s-selector")
    sign = lookup("k8s-selector")
    full = [sighting for sighting in sightings if FULL.search(sighting.text)]
    if len(full) < len(sightings):
        yield opinion(sign.cause, sign.confidence, sign.why, on=sightings[:MAX_EVIDENCE])
    elif full:
        why = "Some nodes do not match the pod's selector; others were passed over for another reason."
        yield opinion(sign.cause, 0.6, why, on=full[:MAX_EVIDENCE])
        largest = [sighting for sighting in full if LARGEST.search(sighting.text)]
        if largest:
            why = "The groups of nodes that the pod could use may not grow any more."
            yield opinion("insufficient_gpu_capacity", 0.75, why, on=largest[:MAX_EVIDENCE])
