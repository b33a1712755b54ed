"""`watchkeeper topology`: the fleet as a tree of racks, leaves, nodes, GPUs and links, with the trouble unfolded."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import click

from watchkeeper.cli import options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

# Healthy nodes are named one by one up to so many; more of them are counted.
SHOWN_NODES = 16
SHOWN_HOSTS = 4
# States of switches that need no line each.
FOLDED = ("healthy", "unknown")
COLOURS = {"healthy": "green", "unknown": "dim", "warning": "yellow", "slow": "yellow"}
TROUBLE_COLOUR = "bold red"


@dataclass(slots=True)
class TreeBranch:
    """One line of the tree and what hangs below it."""

    text: str
    state: str = ""
    below: list[TreeBranch] = field(default_factory=list)


@click.command("topology")
@click.option("--rack", metavar="NAME", help="Only this rack.")
@click.option("--leaf", metavar="NAME", help="Only nodes on this leaf switch.")
@click.option("--node", metavar="NAME", help="Only this node, with all its GPUs and links.")
@click.option("--all", "show_all", is_flag=True, help="Unfold what is healthy, too.")
@options.as_json
@options.with_hub
def command(hub: Client, rack: str | None, leaf: str | None, node: str | None, show_all: bool, as_json: bool) -> None:
    """Racks, leaves, nodes, GPUs and links, each with its state.

    What is healthy is folded into a number; what is not is unfolded down to the GPU or the link, with the reason.
    """
    answer = hub.topology(rack=rack, leaf=leaf, node=node)
    if as_json:
        options.print_json(options.fields(answer))
        return
    is_part = any(name is not None for name in (rack, leaf, node))
    shown = TreeDetail(everything=show_all, nodes=is_part, parts=node is not None, switches=not is_part)
    tree = build_tree(answer, shown)
    if sys.stdout.isatty():
        _print_rich(tree)
    else:
        for line in plain_lines(tree):
            click.echo(line)


@dataclass(frozen=True, slots=True)
class TreeDetail:
    """How far healthy things are unfolded: to everything, to nodes, to the parts of a node; and if switches follow."""

    everything: bool = False
    nodes: bool = False
    parts: bool = False
    switches: bool = True


def build_tree(answer: answers.Topology, shown: TreeDetail) -> list[TreeBranch]:
    """The answer of a hub as a heading with its tree."""
    racks, switches = answer.racks, answer.switches
    nodes = [node for rack in racks for leaf in rack.leaves for node in leaf.nodes]
    tree = [TreeBranch(_heading(answer, nodes), _worst(node.state for node in nodes))]
    tree += [_rack(rack, shown) for rack in racks]
    tree += _unmapped(answer.unmapped)
    if not shown.switches:
        return tree
    tree += [_switch(one) for one in switches if shown.everything or one.state not in FOLDED]
    for state in () if shown.everything else FOLDED:
        if count := sum(one.state == state for one in switches):
            tree.append(TreeBranch(f"{_count(count, 'switch', 'switches')} {state}", state))
    return tree + _unlisted(answer.fabric)


def _unmapped(counts: Mapping[str, int]) -> list[TreeBranch]:
    return [TreeBranch(said[:1].lower() + said[1:], "unknown") for said in options.unmapped(counts)]


def _unlisted(fabric: answers.SweepStatus | None) -> list[TreeBranch]:
    """Hosts that the fabric has and nobody else: without a place in the inventory they are in no rack."""
    if fabric is None:
        return []
    hosts, unnamed, found = fabric.unlisted_hosts, fabric.unnamed_hosts, list[TreeBranch]()
    if hosts:
        more = ", …" if len(hosts) > SHOWN_HOSTS else ""
        text = (
            f"{_count(len(hosts), 'host')} of the fabric not in the inventory: {', '.join(hosts[:SHOWN_HOSTS])}{more}"
        )
        found.append(TreeBranch(text, "unknown"))
    if unnamed:
        found.append(TreeBranch(f"{_count(unnamed, 'adapter')} of the fabric without a host name", "unknown"))
    return found


def _heading(answer: answers.Topology, nodes: Sequence[answers.TopologyNode]) -> str:
    gpus = sum(len(node.gpus) for node in nodes)
    bad = sum(node.state != "healthy" for node in nodes)
    parts = [_count(len(answer.racks), "rack"), _count(len(nodes), "node"), _count(gpus, "GPU")]
    verdict = "all healthy" if not bad else f"{_count(bad, 'node')} not healthy"
    text = f"{answer.cluster}: {', '.join(parts)}; {verdict if nodes else 'no node is known'}"
    fabric = answer.fabric
    if fabric is None:
        return text
    links = f"{_count(fabric.links, 'link')}, {fabric.links_down} down"
    said = f"fabric by {fabric.source}: {links}" if fabric.source else "fabric not read"
    return f"{text}; {said}" + (f" – {fabric.problem}" if fabric.problem else "")


def _rack(rack: answers.TopologyRack, shown: TreeDetail) -> TreeBranch:
    nodes = [node for leaf in rack.leaves for node in leaf.nodes]
    name = f"rack {rack.name}" if rack.name else "unmapped: no rack is known"
    branch = TreeBranch(f"{name} · {_summary(nodes)}", rack.state, _reasons(rack.why))
    if rack.state == "healthy" and not (shown.nodes or shown.parts or shown.everything):
        leaves = [leaf.name for leaf in rack.leaves if leaf.name]
        branch.text += f" · {', '.join(leaves[:4])}" if leaves else ""
        return branch
    branch.below += [_leaf(leaf, shown) for leaf in rack.leaves]
    return branch


def _leaf(leaf: answers.TopologyLeaf, shown: TreeDetail) -> TreeBranch:
    name = f"leaf {leaf.name}" if leaf.name else "unmapped: no leaf is known"
    branch = TreeBranch(f"{name} · {_summary(leaf.nodes)}", leaf.state, _reasons(leaf.why))
    bad = [node for node in leaf.nodes if node.state != "healthy"]
    healthy = [node for node in leaf.nodes if node.state == "healthy"]
    branch.below += [_node(node, everything=shown.parts or shown.everything) for node in bad]
    if shown.everything or shown.parts or (shown.nodes and len(healthy) <= SHOWN_NODES):
        branch.below += [_node(node, everything=shown.parts or shown.everything) for node in healthy]
    elif healthy and bad:
        branch.below.append(TreeBranch(f"{_count(len(healthy), 'node')} healthy", "healthy"))
    return branch


def _node(node: answers.TopologyNode, *, everything: bool) -> TreeBranch:
    gpus: Sequence[answers.TopologyGpu] = node.gpus
    links = node.links
    counts = [_fold(gpus, "GPU"), *([_fold(links, "link")] if links else [])]
    state = "" if node.state == "healthy" else f" · {node.state}"
    branch = TreeBranch(f"node {node.name}{state} · {', '.join(counts)}", node.state, _reasons(node.why))
    if gpus and not everything and len({(gpu.state, gpu.why) for gpu in gpus}) == 1:
        # A machine that is silent as a whole needs no line for each of its GPUs.
        gpus = [] if gpus[0].state in ("healthy", "silent") else gpus
    shown = [gpu for gpu in gpus if everything or gpu.state != "healthy"]
    branch.below += [TreeBranch(_gpu(gpu), gpu.state) for gpu in shown if gpu.uuid is not None]
    if nameless := [gpu for gpu in shown if gpu.uuid is None]:
        text = f"{_count(len(nameless), 'gpu')} · {nameless[0].state} · {nameless[0].why}"
        branch.below.append(TreeBranch(text, nameless[0].state))
    branch.below += [TreeBranch(_link(link), link.state) for link in links if everything or link.state != "healthy"]
    return branch


def _gpu(gpu: answers.TopologyGpu) -> str:
    name = "gpu ?" if gpu.index is None else f"gpu {gpu.index}"
    return " · ".join(part for part in (name, gpu.state, gpu.uuid, gpu.why) if part)


def _link(link: answers.TopologyLink) -> str:
    rate = "" if link.gbps is None else f"{link.gbps:g} Gb/s"
    there = f"{link.switch} port {link.switch_port}" if link.switch else ""
    parts = (f"link {link.device}/{link.port}", link.state, rate, there, link.why)
    return " · ".join(part for part in parts if part)


def _switch(switch: answers.TopologySwitch) -> TreeBranch:
    links = _count(switch.links, "link")
    text = f"{switch.role} switch {switch.name} · {switch.state} · {links}"
    return TreeBranch(text, switch.state, _reasons(switch.trouble))


def _summary(nodes: Sequence[answers.TopologyNode]) -> str:
    gpus = sum(len(node.gpus) for node in nodes)
    bad = sum(node.state != "healthy" for node in nodes)
    if not bad:
        return f"{_count(len(nodes), 'node')} healthy · {_count(gpus, 'GPU')}"
    return f"{bad} of {_count(len(nodes), 'node')} not healthy"


def _fold(parts: Sequence[answers.TopologyGpu | answers.TopologyLink], word: str) -> str:
    states = {part.state for part in parts} or {"healthy"}
    if len(states) == 1:
        return f"{_count(len(parts), word)} {states.pop()}"
    bad = sum(part.state != "healthy" for part in parts)
    return f"{bad} of {_count(len(parts), word)} not healthy"


def _reasons(why: Iterable[str]) -> list[TreeBranch]:
    return [TreeBranch(text) for text in why]


def _worst(states: Iterable[str]) -> str:
    return next((state for state in states if state != "healthy"), "healthy")


def _count(number: int, word: str, words: str | None = None) -> str:
    return f"{number:,} {word if number == 1 else words or word + 's'}"


def plain_lines(tree: Iterable[TreeBranch], indent: str = "") -> Iterator[str]:
    for branch in tree:
        yield f"{indent}{branch.text}"
        yield from plain_lines(branch.below, indent + "  ")


def _print_rich(tree: Sequence[TreeBranch]) -> None:
    from rich.console import Console
    from rich.text import Text
    from rich.tree import Tree

    def grow(on: Tree, branches: Iterable[TreeBranch]) -> None:
        for branch in branches:
            style = "" if not branch.state else COLOURS.get(branch.state, TROUBLE_COLOUR)
            grow(on.add(Text(branch.text, style=style)), branch.below)

    root = Tree(Text(tree[0].text, style="bold"))
    grow(root, tree[1:])
    Console(highlight=False).print(root)
