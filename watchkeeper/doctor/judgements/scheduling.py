"""Judge why Kubernetes did not schedule a pod, from the reasons in the scheduler's message.

Every cluster has nodes with taints that GPU pods do not tolerate, such as control planes. The message lists them
together with the real reason.
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
AT_LIMIT = re.compile(
    r"max node group size reached|in backoff after failed scale-up|max cluster \w+(?: \w+)? limit reached"
)
FULL = re.compile(rf"(?i)Insufficient (?:nvidia|amd|gpu)|{AT_LIMIT.pattern}")
IRRELEVANT_TAINTS = ("node-role.kubernetes.io/", "CriticalAddonsOnly")
NODE_STATE = re.compile(r"node\.kubernetes\.io/(?:not-ready|unreachable|out-of-service)")


def taints(facts: DoctorFacts) -> Iterable[Opinion]:
    """Relevant taints: not those of the control plane, and not those for a node that is down."""
    down: list[Sighting] = []
    relevant: list[Sighting] = []
    for sighting in facts.find("k8s-untolerated-taint"):
        keys = [match["taint"] or "" for match in TAINT.finditer(sighting.text)]
        if any(NODE_STATE.search(key) for key in keys):
            down.append(sighting)
        if any(not NODE_STATE.search(key) and not key.startswith(IRRELEVANT_TAINTS) for key in keys):
            relevant.append(sighting)
    sign = lookup("k8s-untolerated-taint")
    if relevant:
        is_unnamed = all("{" not in sighting.text for sighting in relevant)
        has_other_reason = any(OTHER_REASON.search(sighting.text) for sighting in relevant)
        confidence = sign.confidence if not has_other_reason else 0.6 if is_unnamed else 0.82
        yield opinion(sign.cause, confidence, sign.why, on=relevant[:MAX_EVIDENCE])
    elif facts.has("k8s-untolerated-taint") and not down:
        why = "Only nodes of the control plane, or for other uses, were rejected for a taint."
        yield opinion(sign.cause, 0.35, why, on=facts.find("k8s-untolerated-taint")[:MAX_EVIDENCE])
    if down:
        why = "Nodes have the taint not-ready or unreachable: they are down, and a toleration does not help."
        yield opinion("node_down", 0.72, why, on=down[:MAX_EVIDENCE])


def selectors(facts: DoctorFacts) -> Iterable[Opinion]:
    """Selectors that no node matches; nodes or groups that the message lists as full do match."""
    sightings = facts.find("k8s-selector")
    sign = lookup("k8s-selector")
    full = [sighting for sighting in sightings if FULL.search(sighting.text)]
    if len(full) < len(sightings):
        yield opinion(sign.cause, sign.confidence, sign.why, on=sightings[:MAX_EVIDENCE])
    elif full:
        why = "Some nodes do not match the node selector of the pod; others were rejected for another reason."
        yield opinion(sign.cause, 0.6, why, on=full[:MAX_EVIDENCE])
        at_limit = [sighting for sighting in full if AT_LIMIT.search(sighting.text)]
        if at_limit:
            why = "The node groups that the pod could use are at their maximum size."
            yield opinion("insufficient_gpu_capacity", 0.75, why, on=at_limit[:MAX_EVIDENCE])
