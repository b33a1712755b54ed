"""`watchkeeper topology`: a tree of racks, leaves, nodes, GPUs and links that expands what is not healthy."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import click

from watchkeeper.cli import options, terminal
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

# More healthy nodes of a leaf are counted, not listed.
MAX_NODES = 16
MAX_HOSTS = 4
# Switches in these states are counted, not listed.
FOLDED_STATES = ("healthy", "unknown")
COLOURS = {"healthy": "green", "unknown": "dim", "warning": "yellow", "slow": "yellow"}
PROBLEM_COLOUR = "bold red"


@dataclass(slots=True)
class TreeBranch:
    text: str
    state: str = ""
    children: list[TreeBranch] = field(default_factory=list)


@click.command("topology")
@click.option("--rack", metavar="NAME", help="Show only this rack.")
@click.option("--leaf", metavar="NAME", help="Show only nodes on this leaf switch.")
@click.option("--node", metavar="NAME", help="Show only this node, with all its GPUs and links.")
@click.option("--all", "show_all", is_flag=True, help="Expand healthy parts too.")
@options.with_hub_and_json
def command(hub: Client, rack: str | None, leaf: str | None, node: str | None, show_all: bool, as_json: bool) -> None:
    """Show racks, leaves, nodes, GPUs and links, each with its state.

    Healthy parts are counted; other parts are expanded down to the GPU or link, with the reason.
    """
    answer = hub.topology(rack=rack, leaf=leaf, node=node)
    if as_json:
        options.print_json(options.answer_fields(answer))
        return
    is_part = any(name is not None for name in (rack, leaf, node))
    detail = TreeDetail(everything=show_all, nodes=is_part, parts=node is not None, switches=not is_part)
    tree = build_tree(answer, detail)
    if sys.stdout.isatty():
        _print_rich(tree)
    else:
        for line in plain_lines(tree):
            click.echo(line)


@dataclass(frozen=True, slots=True)
class TreeDetail:
    """Which healthy parts are listed: everything, nodes, or the parts of a node; and whether switches are shown."""

    everything: bool = False
    nodes: bool = False
    parts: bool = False
    switches: bool = True


def build_tree(answer: answers.Topology, detail: TreeDetail) -> list[TreeBranch]:
    racks, switches = answer.racks, answer.switches
    nodes = [node for rack in racks for leaf in rack.leaves for node in leaf.nodes]
    first_problem = next((node.state for node in nodes if node.state != "healthy"), "healthy")
    tree = [TreeBranch(_format_heading(answer, nodes), first_problem)]
    tree += [_rack_branch(rack, detail) for rack in racks]
    tree += [TreeBranch(line[:1].lower() + line[1:], "unknown") for line in options.unmapped_lines(answer.unmapped)]
    if not detail.switches:
        return tree
    tree += [_switch_branch(switch) for switch in switches if detail.everything or switch.state not in FOLDED_STATES]
    for state in () if detail.everything else FOLDED_STATES:
        if count := sum(switch.state == state for switch in switches):
            tree.append(TreeBranch(f"{terminal.format_count(count, 'switch', 'switches')} {state}", state))
    return tree if answer.fabric is None else [*tree, *_unlisted_branches(answer.fabric)]


def _unlisted_branches(fabric: answers.SweepStatus) -> Iterator[TreeBranch]:
    """Hosts that only the fabric reports: they are not in the inventory, so they have no rack."""
    if hosts := fabric.unlisted_hosts:
        names = ", ".join(hosts[:MAX_HOSTS]) + (", …" if len(hosts) > MAX_HOSTS else "")
        text = f"{terminal.format_count(len(hosts), 'host')} of the fabric not in the inventory: {names}"
        yield TreeBranch(text, "unknown")
    if unnamed := fabric.unnamed_hosts:
        yield TreeBranch(f"{terminal.format_count(unnamed, 'adapter')} of the fabric without a host name", "unknown")


def _format_heading(answer: answers.Topology, nodes: Sequence[answers.TopologyNode]) -> str:
    counts = {"rack": len(answer.racks), "node": len(nodes), "GPU": sum(len(node.gpus) for node in nodes)}
    parts = ", ".join(terminal.format_count(count, noun) for noun, count in counts.items())
    unhealthy = sum(node.state != "healthy" for node in nodes)
    verdict = "all healthy" if not unhealthy else f"{terminal.format_count(unhealthy, 'node')} not healthy"
    text = f"{answer.cluster}: {parts}; {verdict if nodes else 'no nodes'}"
    fabric = answer.fabric
    if fabric is None:
        return text
    links = f"{terminal.format_count(fabric.links, 'link')}, {fabric.links_down} down"
    fabric_text = f"fabric by {fabric.source}: {links}" if fabric.source else "fabric not read"
    return f"{text}; {fabric_text}" + (f" – {fabric.problem}" if fabric.problem else "")


def _rack_branch(rack: answers.TopologyRack, detail: TreeDetail) -> TreeBranch:
    nodes = [node for leaf in rack.leaves for node in leaf.nodes]
    name = f"rack {rack.name}" if rack.name else "unmapped: no rack"
    branch = TreeBranch(f"{name} · {_summarise_nodes(nodes)}", rack.state, _reason_branches(rack.why))
    if rack.state == "healthy" and not (detail.nodes or detail.parts or detail.everything):
        leaves = [leaf.name for leaf in rack.leaves if leaf.name]
        branch.text += f" · {', '.join(leaves[:4])}" if leaves else ""
        return branch
    branch.children += [_leaf_branch(leaf, detail) for leaf in rack.leaves]
    return branch


def _leaf_branch(leaf: answers.TopologyLeaf, detail: TreeDetail) -> TreeBranch:
    name = f"leaf {leaf.name}" if leaf.name else "unmapped: no leaf"
    branch = TreeBranch(f"{name} · {_summarise_nodes(leaf.nodes)}", leaf.state, _reason_branches(leaf.why))
    unhealthy = [node for node in leaf.nodes if node.state != "healthy"]
    healthy = [node for node in leaf.nodes if node.state == "healthy"]
    everything = detail.parts or detail.everything
    branch.children += [_node_branch(node, everything=everything) for node in unhealthy]
    if everything or (detail.nodes and len(healthy) <= MAX_NODES):
        branch.children += [_node_branch(node, everything=everything) for node in healthy]
    elif healthy and unhealthy:
        branch.children.append(TreeBranch(f"{terminal.format_count(len(healthy), 'node')} healthy", "healthy"))
    return branch


def _node_branch(node: answers.TopologyNode, *, everything: bool) -> TreeBranch:
    gpus: Sequence[answers.TopologyGpu] = node.gpus
    links = node.links
    summaries = [_summarise_parts(gpus, "GPU"), *([_summarise_parts(links, "link")] if links else [])]
    state = "" if node.state == "healthy" else f" · {node.state}"
    branch = TreeBranch(f"node {node.name}{state} · {', '.join(summaries)}", node.state, _reason_branches(node.why))
    if gpus and not everything and len({(gpu.state, gpu.why) for gpu in gpus}) == 1:
        # A silent node needs no line for each of its GPUs.
        gpus = [] if gpus[0].state in ("healthy", "silent") else gpus
    shown = [gpu for gpu in gpus if everything or gpu.state != "healthy"]
    for gpu in shown:
        if gpu.uuid is not None:
            parts = ("gpu ?" if gpu.index is None else f"gpu {gpu.index}", gpu.state, gpu.uuid, gpu.why)
            branch.children.append(TreeBranch(" · ".join(filter(None, parts)), gpu.state))
    if unnamed_gpus := [gpu for gpu in shown if gpu.uuid is None]:
        text = f"{terminal.format_count(len(unnamed_gpus), 'gpu')} · {unnamed_gpus[0].state} · {unnamed_gpus[0].why}"
        branch.children.append(TreeBranch(text, unnamed_gpus[0].state))
    branch.children += [_link_branch(link) for link in links if everything or link.state != "healthy"]
    return branch


def _link_branch(link: answers.TopologyLink) -> TreeBranch:
    rate = "" if link.gbps is None else f"{link.gbps:g} Gb/s"
    switch_port = f"{link.switch} port {link.switch_port}" if link.switch else ""
    parts = (f"link {link.device}/{link.port}", link.state, rate, switch_port, link.why)
    return TreeBranch(" · ".join(filter(None, parts)), link.state)


def _switch_branch(switch: answers.TopologySwitch) -> TreeBranch:
    links = terminal.format_count(switch.links, "link")
    text = f"{switch.role} switch {switch.name} · {switch.state} · {links}"
    return TreeBranch(text, switch.state, _reason_branches(switch.trouble))


def _summarise_nodes(nodes: Sequence[answers.TopologyNode]) -> str:
    unhealthy, count = sum(node.state != "healthy" for node in nodes), terminal.format_count(len(nodes), "node")
    gpus = terminal.format_count(sum(len(node.gpus) for node in nodes), "GPU")
    return f"{unhealthy} of {count} not healthy" if unhealthy else f"{count} healthy · {gpus}"


def _summarise_parts(parts: Sequence[answers.TopologyGpu | answers.TopologyLink], word: str) -> str:
    states = {part.state for part in parts} or {"healthy"}
    if len(states) == 1:
        return f"{terminal.format_count(len(parts), word)} {states.pop()}"
    unhealthy = sum(part.state != "healthy" for part in parts)
    return f"{unhealthy} of {terminal.format_count(len(parts), word)} not healthy"


def _reason_branches(why: Iterable[str]) -> list[TreeBranch]:
    return [TreeBranch(text) for text in why]


def plain_lines(tree: Iterable[TreeBranch], indent: str = "") -> Iterator[str]:
    for branch in tree:
        yield f"{indent}{branch.text}"
        yield from plain_lines(branch.children, indent + "  ")


def _print_rich(tree: Sequence[TreeBranch]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def add_branches(parent: Tree, branches: Iterable[TreeBranch]) -> None:
        for branch in branches:
            style = "" if not branch.state else COLOURS.get(branch.state, PROBLEM_COLOUR)
            add_branches(parent.add(Text(branch.text, style=style)), branch.children)

    root = Tree(Text(tree[0].text, style="bold"))
    add_branches(root, tree[1:])
    Console(highlight=False).print(root)
