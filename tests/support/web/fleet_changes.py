"""What may happen to the nodes of a fleet while somebody looks."""

from __future__ import annotations

from tests.web.small_fleet import FleetGpu
from tests.web.small_hub import SmallHub
from watchkeeper.model import fleet


def lose_node(hub: SmallHub) -> None:
    gone = hub.fleet._nodes.pop(1)
    hub.fleet.fleet_gpus = [gpus for gpus in hub.fleet.fleet_gpus if gpus.node != gone.name]


def gain_node(hub: SmallHub) -> None:
    hub.fleet._nodes.append(fleet.Node("main", "gpu-r01-10", "h200", domains={"rack": "r01"}))
    hub.fleet.fleet_gpus.append(FleetGpu("gpu-r01-10", fleet.Gpu("GPU-new", 0)))


def move_rack(hub: SmallHub) -> None:
    first = hub.fleet._nodes.pop(0)
    hub.fleet._nodes.append(fleet.Node("main", first.name, "h200", expected_gpus=8, domains={"rack": "r09"}))
