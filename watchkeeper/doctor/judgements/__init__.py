"""One function per judgement over several signs: `facts -> opinions`, none without evidence.

In: DoctorFacts. Out: opinions with the sightings that support them. Never here: reading of text, ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from watchkeeper.doctor.facts import DoctorFacts, Opinion
from watchkeeper.doctor.judgements import collectives, first_error, general, kernel, network

Judgement = Callable[[DoctorFacts], Iterable[Opinion]]

JUDGEMENTS: tuple[Judgement, ...] = (
    general.sign_causes, kernel.xids, kernel.reported_xids, kernel.switch_errors, kernel.bus_errors, kernel.hung_calls,
    kernel.stuck_processors, kernel.lost_links, kernel.machine_checks, collectives.hang, collectives.dumps,
    first_error.first_error, first_error.missing_node_errors, collectives.ended_ranks, collectives.dead_workers,
    first_error.first_to_diverge, first_error.disagrees_with_all, first_error.silent_rank, general.taints,
    general.selectors, network.queue_pairs, network.completions, network.interfaces, network.versions,
    network.adapters, network.settings, network.adapters_against_ibstat, general.dcgm_incidents, general.gpu_memory,
    general.host_memory, general.checkpoints, general.requests, general.serving, general.unavailable_services,
    general.unreachable_from_pods, general.unexplained_errors,
)  # fmt: skip
