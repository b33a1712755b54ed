"""One function per question over several signs: `facts -> opinions`, where nothing means "nothing speaks for it".

Comes in: Facts. Goes out: opinions with the sightings they rest on. Never here: reading of text, ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.judgements import collectives, first_error, general, kernel, network, odd_rank, rdma, services
from watchkeeper.doctor.judgements import scheduling as waiting
from watchkeeper.doctor.opinion import Opinion

Judgement = Callable[[DoctorFacts], Iterable[Opinion]]

JUDGEMENTS: tuple[Judgement, ...] = (
    general.signs, kernel.xids, kernel.reported_xids, kernel.switch_errors, kernel.bus_errors, kernel.hung_calls,
    kernel.stuck_processors, kernel.lost_links, kernel.machine_checks, collectives.hang, collectives.dumps,
    first_error.came_first, first_error.on_the_missing_node, collectives.ended_ranks, collectives.dead_workers,
    odd_rank.first_to_diverge, odd_rank.disagrees_with_all, odd_rank.fell_silent, waiting.taints,
    waiting.selectors, network.queue_pairs, network.completions, network.interfaces, network.versions,
    network.adapters, network.settings, rdma.adapters_against_ibstat, general.dcgm_incidents, general.gpu_memory,
    general.host_memory, general.checkpoints, general.requests, general.serving, services.away, general.leftovers,
)  # fmt: skip
