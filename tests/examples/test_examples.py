"""Every example runs, and says what its reader is told it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.product.running import await_that, up

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "02_break_a_fleet_in_memory.py": "7 of 8 GPUs report; the right cause is gpu_fell_off_bus",
    "03_query_your_own_samples.py": "n1: 700 W\nn2: 300 W\n",
    "04_gpus_in_your_logs.py": "step 2 | ",
}


def run(name: str, *arguments: str) -> str:
    line = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=30).stdout


@pytest.mark.parametrize("name", SAYS)
def test_an_example_runs_by_itself(name: str) -> None:
    assert SAYS[name] in run(name)


def test_a_hub_answers_the_first_example(tmp_path: Path) -> None:
    with up(tmp_path) as product:
        await_that(product.scraped)
        said = run("01_ask_a_hub.py", product.url)
    assert said.count("°C") == 3
    assert "No open incidents." in said


def test_no_example_is_left_out() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"01_ask_a_hub.py", *SAYS}
