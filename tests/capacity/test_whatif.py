"""Changes to a fleet, and what they do to waiting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from watchkeeper.capacity import jobs, whatif
from watchkeeper.capacity.simulated_fleet import FleetNode
from watchkeeper.cli.accounting.capacity import command

FLEET = tuple(FleetNode(f"n{at}", 8, model="H100", rack=f"r{at // 2}") for at in range(4))
HEADER = "id,gpus,submitted,started,ended\n"
BUSY = HEADER + "".join(f"j{at},8,{at * 10},{at * 10},{at * 10 + 100}\n" for at in range(12))


def compared(text: str, change: whatif.FleetChange, nodes: tuple[FleetNode, ...] = FLEET) -> dict[str, Any]:
    return whatif.compare(jobs.read_jobs(text, where="j.csv"), nodes, change)


def test_more_gpus_shorten_the_wait_and_a_lost_rack_lengthens_it() -> None:
    more = compared(BUSY, whatif.FleetChange(add_gpus=32))
    less = compared(BUSY, whatif.FleetChange(remove_racks=("r1",)))
    assert (more["before"]["gpus"], more["after"]["gpus"], less["after"]["gpus"]) == (32, 64, 16)
    assert more["after"]["wait"]["mean"] < more["before"]["wait"]["mean"] < less["after"]["wait"]["mean"]
    assert more["before"]["wait"] == less["before"]["wait"]
    assert more["recorded"]["wait"]["p95"] == 0


def test_slices_take_the_jobs_that_fit_and_leave_whole_gpus_to_others() -> None:
    text = "came,cards,left,began,used\n" + "0,1,100,0,0.1\n" * 7 + "1,8,50,1,\n"
    columns = {"submitted": "came", "gpus": "cards", "ended": "left", "started": "began", "share": "used"}
    recorded = jobs.read_jobs(text, where="j.csv", columns=columns)
    nodes = (FleetNode("n1", 9),)
    cut = whatif.compare(recorded, nodes, whatif.FleetChange(slice_gpus=1, slices_of_gpu=7))
    assert cut["before"]["wait"]["by_gpus"]["5-8"]["mean"] == 99
    assert cut["after"]["wait"]["by_gpus"]["5-8"]["mean"] == 0


def test_a_job_that_never_fits_is_counted_and_in_no_mean() -> None:
    answer = compared(HEADER + "a,8,0,0,10\nb,64,0,0,10\n", whatif.FleetChange())
    assert answer["before"]["never_fits"] == {"jobs": 1, "gpus": [64.0]}
    assert answer["before"]["wait"]["jobs"] == 1


def test_a_model_that_no_node_has_is_named() -> None:
    header = "name,num_gpu,gpu_milli,gpu_spec,creation_time,scheduled_time,deletion_time\n"
    answer = compared(f"{header}p,1,1000,P100,0,0,10\nq,1,1000,H100|P100,0,0,10\n", whatif.FleetChange())
    assert answer["unknown_models"] == {"P100": 2}
    assert answer["before"]["never_fits"]["jobs"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (whatif.FleetChange(remove_gpus=33), "cannot remove 33 GPUs. The fleet has 32"),
        (whatif.FleetChange(remove_gpus=32), "removes all GPUs"),
        (whatif.FleetChange(remove_racks=("r9",)), "there is no rack 'r9'. The fleet has: r0, r1"),
        (whatif.FleetChange(remove_nodes=("x",)), "there is no node 'x'"),
        (whatif.FleetChange(slice_gpus=4, slices_of_gpu=8), "MIG splits a GPU into 2 to 7 instances"),
        (whatif.FleetChange(slice_gpus=40, slices_of_gpu=7), "The fleet has 32 GPUs"),
    ],
)
def test_a_change_that_cannot_be_is_refused_with_what_there_is(change: whatif.FleetChange, words: str) -> None:
    with pytest.raises(whatif.FleetChangeRefused) as refused:
        whatif.apply_change(FLEET, change)
    assert words in str(refused.value)


def test_gpus_are_added_in_nodes_like_the_others_and_taken_from_the_end() -> None:
    added = whatif.apply_change(FLEET, whatif.FleetChange(add_gpus=12))[4:]
    assert [(node.gpus, node.model) for node in added] == [(8, "H100"), (4, "H100")]
    assert [node.gpus for node in whatif.apply_change(FLEET, whatif.FleetChange(remove_gpus=10))] == [8, 8, 6]


def test_the_smallest_addition_that_keeps_a_wait_is_found() -> None:
    recorded = jobs.read_jobs(BUSY, where="j.csv").jobs
    addition = whatif.find_smallest_addition(recorded, FLEET, target_seconds=30.0)
    assert addition.add_gpus is not None
    waits = [
        compared(BUSY, whatif.FleetChange(add_gpus=gpus))["after"]["wait"]["p95"]
        for gpus in (addition.add_gpus - 8, addition.add_gpus)
    ]
    assert waits[1] <= 30 < waits[0]
    assert (addition.p95_seconds, addition.days_kept) == (waits[1], 1.0)


def test_a_wait_that_no_fleet_can_keep_is_said() -> None:
    text = HEADER + "".join(f"j{at},32,0,0,100\n" for at in range(40))
    addition = whatif.find_smallest_addition(jobs.read_jobs(text, where="j").jobs, FLEET, target_seconds=1.0)
    assert (addition.add_gpus, addition.days_kept) == (None, None)


def test_the_command_says_the_answer_first_and_counts_what_it_left_out(tmp_path: Path) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(BUSY + "bad,8,oops,0,10\n")
    arguments = ["whatif", "--jobs", str(table), "--gpus", "32", "--add", "32"]
    lines = CliRunner().invoke(command, arguments).output.splitlines()
    assert lines[0].startswith("With 32 GPUs added: p95 wait ")
    assert "Dropped: 1 × bad time." in lines
    answer = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    assert answer["jobs"] == {"rows": 13, "jobs": 12, "left_out": 1}


def test_jobs_that_would_never_fit_are_said_beside_the_wait_that_has_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(f"{HEADER}a,8,0,0,100\nb,8,0,100,200\nc,4,0,200,300\n")
    arguments = ["whatif", "--jobs", str(tmp_path / "jobs.csv"), "--gpus", "8", "--repartition", "2x7"]
    first = CliRunner().invoke(command, arguments).output.splitlines()[0]
    assert first.endswith("8 → 8 GPUs. 2 jobs that fit before never fit after; the waits exclude them.")


def test_a_lost_rack_is_said_and_so_are_models_that_no_node_has(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "id,gpus,submitted,started,ended,models\n1,8,0,0,100,H200\n2,8,0,0,100,H200\n3,2,0,0,100,Z9\n"
    )
    (tmp_path / "nodes.csv").write_text("name,gpus,model,rack\na,8,H200,R1\nb,8,H200,R2\n")
    tables = ["--jobs", str(tmp_path / "jobs.csv"), "--nodes", str(tmp_path / "nodes.csv")]
    arguments = ["whatif", *tables, "--remove-rack", "R1"]
    assert CliRunner().invoke(command, arguments).output.startswith("With rack R1 removed: p95 wait 0s → ")
    answer = json.loads(CliRunner().invoke(command, [*arguments, "--json"]).output)
    assert (answer["unknown_models"], answer["after"]["gpus"]) == ({"Z9": 1}, 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "8", "--repartition", "many"], "is not GPUSxSLICES"),
        (["--gpus", "8", "--column", "gpus"], "is not NAME=VALUE"),
        ([], "--nodes FILE or --gpus N"),
    ],
)
def test_wrong_use_is_explained(tmp_path: Path, arguments: list[str], words: str) -> None:
    table = tmp_path / "jobs.csv"
    table.write_text(BUSY)
    result = CliRunner().invoke(command, ["whatif", "--jobs", str(table), *arguments])
    assert result.exit_code == 2
    assert words in result.output
