"""NCCL's network: queue pairs, completions, interfaces, versions, and an audit of the settings against the facts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import DoctorFacts, Sighting, values
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion

FAILURES = (
    "nccl-connect-failed",
    "nccl-retries-exceeded",
    "watchdog-timeout",
    "nccl-peer-closed",
    "nccl-remote-error",
    "store-unreachable",
    "nccl-error-kind",
)
# The number of a completion error, as NCCL of today, of older days and perftest name it.
STATUS = ("status", "error", "perftest")
# Never routed beyond one machine or one wire, whatever the job.
TUNNELS = ("ip6tnl", "tun", "wg", "tailscale", "sit")
# Bootstrap : Using [0]ip6tnl0:fe80::e866:19ff:fe1e:a688%ip6tnl0<0> [1]veth0:2a02:…
FIRST_IS_LINK_LOCAL = re.compile(r"[Uu]sing (?:interface )?(?:\[0\])?[\w.@-]+:(?:fe80|169\.254)")


def queue_pairs(facts: DoctorFacts) -> Iterable[Opinion]:
    """`ibv_modify_qp` failed: the address pair tells whether the GID is wrong or the path is."""
    for sighting in facts.of("modify-qp")[:MAX_EVIDENCE]:
        local, reason = sighting.fields.get("local_gid", ""), sighting.fields.get("reason", "")
        listed = facts.of("gid-entry")
        link_local = local.startswith("fe80") or sighting.fields.get("remote_gid", "").startswith("fe80")
        if link_local or (not local and any(entry.fields["gid"].startswith("fe80") for entry in listed)):
            why = "The queue pair was tried with a link-local GID, which is not routed; another index of the table is."
            yield opinion("nccl_ib_gid", 0.88, why, on=[sighting, *listed[:4]])
            yield opinion("nccl_ib_link_error", 0.4, "The queue pair could not be connected.", on=[sighting])
        elif "timed out" in reason and local:
            why = f"The queue pair could not be connected ({reason}), though both GIDs are routable: no path."
            yield opinion("nccl_ib_link_error", 0.78, why, on=[sighting])
            yield opinion("nccl_ib_gid", 0.55, why, on=[sighting])
        elif "timed out" in reason:
            why = f"The queue pair could not be connected ({reason}); the line does not name the GIDs."
            yield opinion("nccl_ib_link_error", 0.6, why, on=[sighting])
            yield opinion("nccl_ib_gid", 0.58, why, on=[sighting])
        else:
            why = f"The queue pair could not be connected ({reason}): this device or GID index cannot reach the peer."
            yield opinion("nccl_ib_gid", 0.7, why, on=[sighting])
            yield opinion("nccl_ib_link_error", 0.55, why, on=[sighting])


def completions(facts: DoctorFacts) -> Iterable[Opinion]:
    """RDMA completion errors by status; the peer in the line is the suspect, not the node that prints it."""
    for sighting in facts.of("nccl-ib-completion")[:MAX_EVIDENCE]:
        status = int(next((sighting.fields[name] for name in STATUS if name in sighting.fields), -1))
        row = tables.find_completion(status)
        if row is None:
            yield opinion(
                "nccl_ib_link_error", 0.5, f"RDMA completion error {status}, which no table describes.", on=[sighting]
            )
        elif row.confidence:
            peer = sighting.fields.get("peer", "")
            why = (
                f"RDMA completion error {status} ({row.name}): {row.meaning}. Peer {peer}."
                if peer
                else f"{row.name}: {row.meaning}."
            )
            yield opinion(row.cause, row.confidence, why, on=[sighting])
            if status in (12, 13):
                yield opinion(
                    "nccl_rank_died",
                    0.4,
                    "The silent peer may simply have died: look for its last lines.",
                    on=[sighting],
                )


def interfaces(facts: DoctorFacts) -> Iterable[Opinion]:
    """Interfaces that other nodes cannot reach; on a single node they are harmless."""
    bad = facts.of("nccl-bad-interface", "nccl-link-local")
    if not bad:
        return
    nodes = values(facts.of("nccl-interface", "nccl-rank", *FAILURES), "node")
    failed = any(facts.has(sign) for sign in FAILURES)
    for sighting in bad:
        name = sighting.fields.get("interface", "")
        tunnel = name.startswith(TUNNELS) or sighting.sign == "nccl-link-local"
        confidence = 0.78 if failed else 0.62 if tunnel else 0.48 if len(nodes) > 1 else 0.1
        if not failed and sighting.sign == "nccl-link-local" and not FIRST_IS_LINK_LOCAL.search(sighting.text):
            # A further interface beside a good one hurts only when a connection over it fails.
            confidence = 0.1
        what = "a link-local address" if sighting.sign == "nccl-link-local" else "a loopback, bridge or tunnel"
        why = f"Ranks announce {name}, {what}, which other nodes cannot reach."
        yield opinion(
            "nccl_wrong_interface", confidence, why, on=[sighting], where=[("interface", name)] if name else []
        )


def versions(facts: DoctorFacts) -> Iterable[Opinion]:
    """Different NCCL releases on different nodes, announced or betrayed by their wording."""
    announced: dict[str, Sighting] = {}
    for sighting in facts.of("nccl-version"):
        announced.setdefault(sighting.fields["version"], sighting)
    nodes = {sighting.fields.get("node", "") for sighting in facts.of("nccl-version")}
    if len(announced) > 1 and len(nodes) > 1:
        why = f"Ranks announce different versions: {', '.join(announced)}."
        yield opinion("nccl_version_mismatch", 0.85, why, on=announced.values())
        return
    old, new = facts.of("nccl-plugin-wording-old"), facts.of("nccl-plugin-wording-new")
    old_nodes, new_nodes = set(values(old, "node")), set(values(new, "node"))
    if old_nodes and new_nodes and not old_nodes & new_nodes:
        older, newer = ", ".join(sorted(old_nodes)), ", ".join(sorted(new_nodes))
        why = f"{older} writes the plug-in line of NCCL before 2.22, {newer} that of later releases."
        yield opinion("nccl_version_mismatch", 0.6, why, on=[old[0], new[0]])


def adapters(facts: DoctorFacts) -> Iterable[Opinion]:
    """Nodes of one job that use different numbers of RDMA adapters: one of them lost some."""
    by_node: dict[str, tuple[int, Sighting]] = {}
    for sighting in facts.of("nccl-ib-devices"):
        if node := sighting.fields.get("node"):
            by_node.setdefault(node, (sighting.fields["hcas"].count("]"), sighting))
    counts = {count for count, _ in by_node.values()}
    if len(counts) > 1:
        few = [node for node, (count, _) in by_node.items() if count < max(counts)]
        why = f"{', '.join(few)} uses {min(counts)} RDMA adapters, others {max(counts)}."
        yield opinion("ib_link_degraded", 0.6, why, on=[by_node[node][1] for node in few], where=[("node", few[0])])


def settings(facts: DoctorFacts) -> Iterable[Opinion]:
    """Every setting that a rank shows, against packs/nccl_settings.csv, and RDMA that exists and is not used."""
    given = facts.of("nccl-setting", "env-setting")
    nodes = values(facts.of("nccl-rank", "nccl-interface", "nccl-network", "nccl-ib-none"), "node")
    spread = len(nodes) > 1
    # A setting that only hurts between nodes is no fault of a job whose ranks all speak from one.
    may_hurt = spread or not (nodes or facts.has("nccl-rank"))
    advice = []
    for sighting in given:
        for row in tables.nccl_settings():
            if row.variable == sighting.fields["variable"] and row.value.search(sighting.fields["value"]):
                advice.append(f"{row.variable}={sighting.fields['value']}: {row.problem}. Change: {row.change}")
                if row.cause and may_hurt:
                    yield opinion(
                        row.cause,
                        row.confidence if spread else 0.45,
                        f"{row.variable}: {row.problem}.",
                        on=[sighting],
                        advice=[f"{row.change}"],
                    )
                break
    sockets = [
        sighting for sighting in facts.of("nccl-network") if sighting.fields["network"].lower().startswith("socket")
    ]
    if sockets and not advice_names_rdma(advice) and (spread or facts.has("hca-port-active")):
        on_rdma = [
            sighting
            for sighting in facts.of("nccl-network")
            if not sighting.fields["network"].lower().startswith("socket")
        ]
        no_device = facts.of("nccl-ib-none")
        why = "Ranks of several nodes talk over plain sockets"
        why += (
            "; NCCL found no RDMA device in the container."
            if no_device
            else "."
            if not on_rdma
            else ", while other ranks use RDMA."
        )
        # Plain sockets are a fault only where there is RDMA; a machine without an adapter has nothing better.
        confidence = 0.66 if on_rdma or facts.has("hca-port-active") else 0.45
        yield opinion("nccl_rdma_not_used", confidence, why, on=[*sockets[:4], *no_device[:2]])
    if advice:
        yield opinion("", 0.0, "", on=given[:MAX_EVIDENCE], advice=dict.fromkeys(advice))


def advice_names_rdma(advice: Iterable[str]) -> bool:
    return any("NCCL_IB_DISABLE" in text or "NCCL_NET=" in text for text in advice)
