"""The fleet's capacity now, in GPUs: free, allocated, and free but too fragmented for jobs of a size.

`capacity.fleet_capacity` counts it, `client.typed` reads it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShapeCapacity:
    """Jobs of `gpus` GPUs, each on one node: how many could start now, and how many free GPUs they cannot use."""

    gpus: int
    jobs: int
    usable_gpus: int
    stranded_gpus: int


@dataclass(frozen=True, slots=True)
class FleetCapacity:
    """The fleet in GPUs; `stranded_share`: the share of free GPUs that no job of 8 (or a node's size) can use."""

    gpus: int
    in_service_gpus: int
    allocated_gpus: int = field(metadata={"json_key": "held_gpus"})
    free_gpus: int
    shapes: tuple[ShapeCapacity, ...] = field(metadata={"json_key": "rooms"})
    stranded_share: float | None
    out_of_service: tuple[tuple[str, int, str], ...]
