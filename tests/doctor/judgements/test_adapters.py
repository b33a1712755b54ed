"""Logs of ranks together with ibstat: adapters that the job excludes, misspells, or uses although they are down."""

from __future__ import annotations

import pytest

from tests.doctor.asking import ask
from watchkeeper.doctor.judgements import network


def ibstat(active: int = 8, *, down: tuple[int, ...] = (), slow: tuple[int, ...] = ()) -> str:
    parts = []
    for at in range(active):
        state, physical = ("Down", "Polling") if at in down else ("Active", "LinkUp")
        rate = "25" if at in slow else "400"
        layer = "Ethernet" if at in slow else "InfiniBand"
        parts.append(
            f"CA 'mlx5_{at}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {state}\n"
            f"\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tLink layer: {layer}\n"
        )
    return "".join(parts)


def setting(value: str) -> str:
    rank = "gpu01:4711:4711 [0] NCCL INFO"
    return f"{rank} Bootstrap : Using eth0:10.0.0.1<0>\n{rank} NCCL_IB_HCA set by environment to {value}.\n"


def whys(*texts: str) -> str:
    return " ".join(finding.why for finding in ask(*texts).findings)


def test_adapters_that_the_setting_excludes_are_named() -> None:
    reasons = whys(ibstat(), setting("=mlx5_0,mlx5_1"))
    assert "Ranks use 2 of 8 active adapters of the same kind; not used: mlx5_2, mlx5_3" in reasons


def test_adapters_that_nccl_itself_lists_count_more_than_the_setting() -> None:
    names = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [RO]"
    used = f"gpu01:4711:4790 [0] NCCL INFO NET/IB : Using {names}; OOB eth0:1<0>\n"
    assert "Ranks use 3 of 4 active adapters of the same kind; not used: mlx5_3" in whys(
        ibstat(4), setting("mlx5") + used
    )


def test_a_management_interface_may_be_unused() -> None:
    assert "not used" not in whys(ibstat(3, slow=(2,)), setting("=mlx5_0,mlx5_1"))
    assert "not used" not in whys(ibstat(), setting("mlx5"))


def test_an_adapter_name_that_the_node_does_not_have_is_named() -> None:
    answer = ask(ibstat(2), setting("=mlx5_0,mlx5_7"))
    assert "NCCL_IB_HCA names mlx5_7, but ibstat lists mlx5_0, mlx5_1." in " ".join(f.why for f in answer.findings)
    assert "nccl_rdma_not_used" in {finding.cause for finding in answer.findings}


def test_a_chosen_port_that_is_down_is_said() -> None:
    answer = ask(ibstat(4, down=(3,)), setting("mlx5"))
    (finding,) = [finding for finding in answer.findings if finding.cause == "ib_link_degraded"]
    assert "mlx5_3" in finding.why or any("mlx5_3" in str(item) for item in finding.evidence)


def test_without_ibstat_there_is_no_finding() -> None:
    assert "not used" not in whys(setting("=mlx5_0"))


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("mlx5_1", ["mlx5_1", "mlx5_10"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("^mlx5_1", ["mlx5_2"]),
        ("^=mlx5_1:1", ["mlx5_10", "mlx5_2"]),
    ],
)
def test_names_are_read_as_nccl_reads_them(value: str, chosen: list[str]) -> None:
    assert [hca for hca in ("mlx5_1", "mlx5_10", "mlx5_2") if network.is_chosen(value, hca)] == chosen
