"""The same seed and the same calls give the same bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.sim.simulation import SimSettings, Simulation

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 40)),
        st.tuples(st.just("inject"), st.sampled_from(["xid-79", "xid-48", "xid-31", "fan-failure", "held-idle"])),
        st.tuples(st.just("drain"), st.integers(0, 5)),
        st.tuples(st.just("reboot"), st.integers(0, 5)),
    ),
    max_size=6,
)


def run_calls(seed: int, calls: list[tuple[str, int | str]]) -> list[bytes]:
    fleet = Simulation(SimSettings(gpus=48, seed=seed))
    outputs: list[bytes] = []
    for call, argument in calls:
        if call == "advance":
            fleet.advance(int(argument))
            outputs += [fleet.node_page(node.name) for node in fleet.layout.nodes if fleet.cluster.is_up(node)]
        elif call == "inject":
            fault = fleet.inject(str(argument))
            outputs.append(f"{fault.node.name} {fault.gpu}".encode())
        else:
            node = fleet.layout.nodes[int(argument)]
            outcome = (
                fleet.cluster.drain(node, "test")
                if call == "drain"
                else fleet.cluster.reboot(node, "test", now=fleet.second)
            )
            outputs.append(repr(outcome).encode())
    return [*outputs, repr(fleet.kernel_records_since(0)).encode()]


@pytest.mark.slow
@examples(15)
@given(seed=st.integers(0, 2**40), calls=CALLS)
def test_same_seed_and_same_calls_give_identical_bytes(seed: int, calls: list[tuple[str, int | str]]) -> None:
    assert run_calls(seed, calls) == run_calls(seed, calls)


def test_reading_changes_nothing() -> None:
    quiet, watched = Simulation(SimSettings(gpus=16)), Simulation(SimSettings(gpus=16))
    for _ in range(30):
        quiet.advance(1)
        watched.advance(1)
        watched.node_page("gpu-r01-01")
        watched.inventory("gpu-r01-02")
    assert quiet.node_page("gpu-r01-01") == watched.node_page("gpu-r01-01")


def test_different_seeds_give_different_fleets() -> None:
    first, second = Simulation(SimSettings(gpus=16, seed=1)), Simulation(SimSettings(gpus=16, seed=2))
    uuids = [{gpu["uuid"] for gpu in fleet.inventory("gpu-r01-01")["gpus"]} for fleet in (first, second)]
    assert not uuids[0] & uuids[1]
