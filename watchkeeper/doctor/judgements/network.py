"""Judge the network of NCCL: queue pairs, completions, interfaces, versions, settings and adapters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import MAX_EVIDENCE, DoctorFacts, Opinion, Sighting, field_values, opinion

FAILURES = (
    "nccl-connect-failed", "nccl-retries-exceeded", "watchdog-timeout", "nccl-peer-closed", "nccl-remote-error",
    "store-unreachable", "nccl-error-kind",
)  # fmt: skip
# The fields with the status of a completion error, from current NCCL, older NCCL and perftest.
STATUS_FIELDS = ("status", "error", "perftest")
# Interfaces that are never routed beyond one node or link.
TUNNELS = ("ip6tnl", "tun", "wg", "tailscale", "sit")
# Bootstrap : Using [0]ip6tnl0:fe80::e866:19ff:fe1e:a688%ip6tnl0<0> [1]veth0:2a02:…
FIRST_IS_LINK_LOCAL = re.compile(r"[Uu]sing (?:interface )?(?:\[0\])?[\w.@-]+:(?:fe80|169\.254)")
HCA_SETTING = "NCCL_IB_HCA"
# NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]
USED = re.compile(r"\](?P<hca>[\w.-]+):\d+/")


def queue_pairs(facts: DoctorFacts) -> Iterable[Opinion]:
    """`ibv_modify_qp` failed: the GIDs show whether the GID index or the path is wrong."""
    for sighting in facts.find("modify-qp")[:MAX_EVIDENCE]:
        local_gid, reason = sighting.fields.get("local_gid", ""), sighting.fields.get("reason", "")
        listed = facts.find("gid-entry")
        link_local = local_gid.startswith("fe80") or sighting.fields.get("remote_gid", "").startswith("fe80")
        if link_local or (not local_gid and any(entry.fields["gid"].startswith("fe80") for entry in listed)):
            why = "The queue pair uses a link-local GID, which is not routed; use another GID index."
            yield opinion("nccl_ib_gid", 0.88, why, on=[sighting, *listed[:4]])
            yield opinion("nccl_ib_link_error", 0.4, "The queue pair failed to connect.", on=[sighting])
        elif "timed out" in reason and local_gid:
            why = f"The queue pair failed to connect ({reason}) although both GIDs are routable: there is no path."
            yield opinion("nccl_ib_link_error", 0.78, why, on=[sighting])
            yield opinion("nccl_ib_gid", 0.55, why, on=[sighting])
        elif "timed out" in reason:
            why = f"The queue pair failed to connect ({reason}); the line does not include the GIDs."
            yield opinion("nccl_ib_link_error", 0.6, why, on=[sighting])
            yield opinion("nccl_ib_gid", 0.58, why, on=[sighting])
        else:
            why = f"The queue pair failed to connect ({reason}): this device or GID index cannot reach the peer."
            yield opinion("nccl_ib_gid", 0.7, why, on=[sighting])
            yield opinion("nccl_ib_link_error", 0.55, why, on=[sighting])


def completions(facts: DoctorFacts) -> Iterable[Opinion]:
    """RDMA completion errors by status; the peer in the line is the suspect, not the node that logs it."""
    for sighting in facts.find("nccl-ib-completion")[:MAX_EVIDENCE]:
        status = int(next((sighting.fields[name] for name in STATUS_FIELDS if name in sighting.fields), -1))
        row = tables.find_completion(status)
        if row is None:
            yield opinion("nccl_ib_link_error", 0.5, f"RDMA completion error {status}, meaning unknown.", on=[sighting])
        elif row.confidence:
            why = f"{row.name}: {row.meaning}."
            if peer := sighting.fields.get("peer", ""):
                why = f"RDMA completion error {status} ({row.name}): {row.meaning}. Peer {peer}."
            yield opinion(row.cause, row.confidence, why, on=[sighting])
            if status in (12, 13):
                yield opinion("nccl_rank_died", 0.4, "The peer may have died: read the end of its log.", on=[sighting])


def interfaces(facts: DoctorFacts) -> Iterable[Opinion]:
    """Interfaces that other nodes cannot reach; for a job on one node they are harmless."""
    interface_lines = facts.find("nccl-bad-interface", "nccl-link-local")
    if not interface_lines:
        return
    nodes = field_values(facts.find("nccl-interface", "nccl-rank", *FAILURES), "node")
    has_failures = facts.has(*FAILURES)
    for sighting in interface_lines:
        name = sighting.fields.get("interface", "")
        is_tunnel = name.startswith(TUNNELS) or sighting.sign == "nccl-link-local"
        confidence = 0.78 if has_failures else 0.62 if is_tunnel else 0.48 if len(nodes) > 1 else 0.1
        if not has_failures and sighting.sign == "nccl-link-local" and not FIRST_IS_LINK_LOCAL.search(sighting.text):
            # A further interface next to a good one matters only if a connection over it fails.
            confidence = 0.1
        kind = "a link-local address" if sighting.sign == "nccl-link-local" else "a loopback, bridge or tunnel"
        why = f"Ranks use {name}, {kind}, which other nodes cannot reach."
        where = [("interface", name)] if name else []
        yield opinion("nccl_wrong_interface", confidence, why, on=[sighting], where=where)


def versions(facts: DoctorFacts) -> Iterable[Opinion]:
    """Different NCCL versions on different nodes, from their version lines or from the format of their lines."""
    announced: dict[str, Sighting] = {}
    for sighting in facts.find("nccl-version"):
        announced.setdefault(sighting.fields["version"], sighting)
    nodes = {sighting.fields.get("node", "") for sighting in facts.find("nccl-version")}
    if len(announced) > 1 and len(nodes) > 1:
        why = f"Ranks log different NCCL versions: {', '.join(announced)}."
        yield opinion("nccl_version_mismatch", 0.85, why, on=announced.values())
        return
    old, new = facts.find("nccl-plugin-wording-old"), facts.find("nccl-plugin-wording-new")
    old_nodes, new_nodes = set(field_values(old, "node")), set(field_values(new, "node"))
    if old_nodes and new_nodes and not old_nodes & new_nodes:
        older, newer = ", ".join(sorted(old_nodes)), ", ".join(sorted(new_nodes))
        why = f"{older} logs the plug-in line of NCCL before 2.22, {newer} that of later versions."
        yield opinion("nccl_version_mismatch", 0.6, why, on=[old[0], new[0]])


def adapters(facts: DoctorFacts) -> Iterable[Opinion]:
    """Nodes of one job with different numbers of RDMA adapters: some nodes lost adapters."""
    by_node: dict[str, tuple[int, Sighting]] = {}
    for sighting in facts.find("nccl-ib-devices"):
        if node := sighting.fields.get("node"):
            by_node.setdefault(node, (sighting.fields["hcas"].count("]"), sighting))
    counts = {count for count, _ in by_node.values()}
    if len(counts) > 1:
        nodes_with_fewer = [node for node, (count, _) in by_node.items() if count < max(counts)]
        why = f"{', '.join(nodes_with_fewer)} uses {min(counts)} RDMA adapters, other nodes {max(counts)}."
        on = [by_node[node][1] for node in nodes_with_fewer]
        yield opinion("ib_link_degraded", 0.6, why, on=on, where=[("node", nodes_with_fewer[0])])


def settings(facts: DoctorFacts) -> Iterable[Opinion]:
    """Check the settings of ranks against packs/nccl_settings.csv, and whether available RDMA is used."""
    settings_lines = facts.find("nccl-setting", "env-setting")
    nodes = field_values(facts.find("nccl-rank", "nccl-interface", "nccl-network", "nccl-ib-none"), "node")
    has_many_nodes = len(nodes) > 1
    # The settings matter only between nodes, not for a job on one node.
    is_relevant = has_many_nodes or not (nodes or facts.has("nccl-rank"))
    advice: list[str] = []
    for sighting in settings_lines:
        variable, value = sighting.fields["variable"], sighting.fields["value"]
        rows = (row for row in tables.nccl_settings() if row.variable == variable and row.value.search(value))
        if (row := next(rows, None)) is not None:
            advice.append(f"{variable}={value}: {row.problem}. Change: {row.change}")
            if row.cause and is_relevant:
                confidence, why = row.confidence if has_many_nodes else 0.45, f"{variable}: {row.problem}."
                yield opinion(row.cause, confidence, why, on=[sighting], advice=[row.change])
    if not any("NCCL_IB_DISABLE" in text or "NCCL_NET=" in text for text in advice):
        yield from _sockets(facts, has_many_nodes=has_many_nodes)
    if advice:
        yield opinion("", 0.0, "", on=settings_lines[:MAX_EVIDENCE], advice=dict.fromkeys(advice))


def _sockets(facts: DoctorFacts, *, has_many_nodes: bool) -> Iterable[Opinion]:
    networks, no_device_lines = facts.find("nccl-network"), facts.find("nccl-ib-none")
    sockets = [line for line in networks if line.fields["network"].lower().startswith("socket")]
    uses_rdma, has_active_port = len(sockets) < len(networks), facts.has("hca-port-active")
    if sockets and (has_many_nodes or has_active_port):
        addition = ", while other ranks use RDMA." if uses_rdma else "."
        if no_device_lines:
            addition = "; NCCL found no RDMA device in the container."
        why = f"Ranks of several nodes communicate over sockets{addition}"
        # Sockets are a fault only if RDMA is available.
        confidence = 0.66 if uses_rdma or has_active_port else 0.45
        yield opinion("nccl_rdma_not_used", confidence, why, on=[*sockets[:4], *no_device_lines[:2]])


def adapters_against_ibstat(facts: DoctorFacts) -> Iterable[Opinion]:
    active, down = (
        {sighting.fields["hca"]: sighting for sighting in facts.find(sign) if sighting.fields.get("hca")}
        for sign in ("hca-port-active", "hca-port-down")
    )
    listed = sorted({*active, *down})
    lines = facts.find("nccl-setting", "env-setting")
    settings = [line for line in lines if line.fields["variable"] == HCA_SETTING]
    if not active or not listed:
        return
    for sighting in settings[:1]:
        yield from _configured_adapters(sighting, listed, down)
    device_lines = facts.find("nccl-ib-devices")
    used = {match["hca"] for line in device_lines for match in USED.finditer(line.fields["hcas"])}
    if not used and settings:
        used = {hca for hca in listed if is_chosen(settings[0].fields["value"], hca)}
    yield from _idle_adapters(used & active.keys(), active, on=[*settings[:1], *device_lines[:2]])


def _configured_adapters(sighting: Sighting, listed: list[str], down: dict[str, Sighting]) -> Iterable[Opinion]:
    value = sighting.fields["value"]
    if not value.startswith("^"):
        unknown = [name for name in _adapter_names(value) if not any(_matches(name, hca, value) for hca in listed)]
        if unknown:
            why = f"{HCA_SETTING} names {', '.join(unknown)}, but ibstat lists {', '.join(listed)}."
            advice = [f"Set it to adapters of the node: {HCA_SETTING}={','.join(listed)}"]
            yield opinion("nccl_rdma_not_used", 0.7, why, on=[sighting], advice=advice)
    down_adapters = [hca for hca in down if is_chosen(value, hca)]
    if down_adapters:
        why = f"{HCA_SETTING} selects {', '.join(down_adapters)}, whose port is down."
        ports = [down[hca] for hca in down_adapters[:MAX_EVIDENCE]]
        yield opinion("ib_link_degraded", 0.62, why, on=[sighting, *ports])


def _idle_adapters(used: set[str], active: dict[str, Sighting], *, on: list[Sighting]) -> Iterable[Opinion]:
    """Unused adapters of the same kind and rate as the used ones; a management interface has another rate."""
    kinds = {_kind(active[hca]) for hca in used}
    same_kind = [hca for hca, sighting in active.items() if _kind(sighting) in kinds]
    idle = [hca for hca in same_kind if hca not in used]
    if used and idle:
        why = (
            f"Ranks use {len(used)} of {len(same_kind)} active adapters of the same kind; not used: {', '.join(idle)}."
        )
        advice = [f"Add them, or do not set {HCA_SETTING}: NCCL then uses all active adapters"]
        shown = [*on, *(active[hca] for hca in idle)]
        yield opinion("nccl_rdma_not_used", 0.52, why, on=shown[:MAX_EVIDENCE], advice=advice)


def _kind(sighting: Sighting) -> tuple[str, str]:
    return sighting.fields.get("layer", ""), sighting.fields.get("rate", "")


def is_chosen(value: str, hca: str) -> bool:
    """Whether the value selects the adapter, by NCCL's rules: names are prefixes, `=` means exact, `^` excludes."""
    is_named = any(_matches(name, hca, value) for name in _adapter_names(value))
    return is_named is not value.startswith("^")


def _adapter_names(value: str) -> list[str]:
    return [part.partition(":")[0] for part in value.lstrip("^=").split(",") if part]


def _matches(name: str, hca: str, value: str) -> bool:
    return hca == name if value.lstrip("^").startswith("=") else hca.startswith(name)
