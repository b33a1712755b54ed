"""Pages have the format of dcgm-exporter."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from tests.sim import pages
from watchkeeper.sim.jobs import SimJobKind
from watchkeeper.sim.simulation import SimSettings, Simulation

FIXED = ["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "DCGM_FI_DRIVER_VERSION"]


@pytest.fixture(scope="module")
def fleet() -> Simulation:
    return Simulation(SimSettings(gpus=512, seed=3))


def node_of(fleet: Simulation, pool: str) -> str:
    return next(node.name for node in fleet.layout.nodes if node.pool.name == pool)


def test_every_line_is_a_comment_or_a_sample_and_headers_are_not_repeated(fleet: Simulation) -> None:
    page = fleet.node_page("gpu-r01-01")
    lines = page.decode().splitlines()
    helps = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert helps == types
    assert len(set(helps)) == len(helps) >= 40
    assert [name for name, _, _ in pages.samples(page)] == [name for name in helps for _ in range(8)]
    assert page.endswith(b"\n")


def test_names_types_and_order_are_those_of_the_field_table(fleet: Simulation) -> None:
    text = (resources.files("watchkeeper.packs") / "dcgm_fields.csv").read_text()
    table = {row["name"]: row for row in csv.DictReader(text.splitlines())}
    heads = [line.split() for line in fleet.node_page("gpu-r01-01").decode().splitlines() if line.startswith("# TYPE ")]
    assert all(table[name]["prom_type"] == prom_type for _, _, name, prom_type in heads)
    ids = [int(table[name]["field_id"]) for _, _, name, _ in heads]
    assert ids == sorted(ids)


def test_integers_have_no_point_and_ratios_are_between_0_and_1(fleet: Simulation) -> None:
    for line in fleet.node_page("gpu-r01-02").decode().splitlines():
        if line.startswith(("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_TOTAL_ENERGY")):
            assert line.rsplit(" ", 1)[1].isdigit()
        if line.startswith("DCGM_FI_PROF_SM_ACTIVE"):
            assert 0 <= float(line.rsplit(" ", 1)[1]) <= 1


def test_labels_have_the_order_of_the_exporter(fleet: Simulation) -> None:
    for name, labels, _ in pages.samples(fleet.node_page(node_of(fleet, "h200"))):
        rest = list(labels)[len(FIXED) :]
        assert list(labels)[: len(FIXED)] == FIXED
        assert rest == sorted(rest)
        assert ("err_code" in rest) == (name == "DCGM_FI_DEV_XID_ERRORS")


def test_pods_and_slurm_jobs_are_labels_of_their_gpus_only(fleet: Simulation) -> None:
    attribution = set()
    for node in fleet.layout.nodes:
        busy = fleet.machines.jobs.kind[node.rows] != SimJobKind.NONE
        for _, labels, _ in pages.samples(fleet.node_page(node.name))[:8]:
            extra = tuple(list(labels)[len(FIXED) :])
            assert bool(extra) == bool(busy[int(labels["gpu"])])
            attribution.add((node.pool.scheduler, extra))
    assert ("kubernetes", ("container", "namespace", "pod")) in attribution
    assert ("slurm", ("hpc_job",)) in attribution
    assert len(attribution) == 4


def test_a_field_that_a_model_does_not_have_is_absent(fleet: Simulation) -> None:
    without = fleet.node_page(node_of(fleet, "l40s"))
    assert b"NVLINK" not in without
    assert b"MEMORY_TEMP" not in without
    assert b"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" in fleet.node_page(node_of(fleet, "h100"))


def test_memory_adds_up(fleet: Simulation) -> None:
    page = fleet.node_page("gpu-r01-01")
    parts = [pages.by_gpu(page, f"DCGM_FI_DEV_FB_{part}") for part in ("USED", "FREE", "RESERVED")]
    assert {sum(part[gpu] for part in parts) for gpu in range(8)} == {143771}
