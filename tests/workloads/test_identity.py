"""Names of pods become names of jobs, alike in Python and in the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper import packs
from watchkeeper.model import jobs


@pytest.mark.parametrize(
    ("pod", "job"),
    [
        ("llm-70b-worker-0", "llm-70b"),
        ("llm-70b-master-0", "llm-70b"),
        ("llama-3-8b-0", "llama-3-8b"),
        ("gpt-3-0", "gpt-3"),
        ("pretrain-workers-0-12-x7k2p", "pretrain"),
        ("train-4-zk9xw", "train"),
        ("chat-6d4cf56db6-x7k2p", "chat"),
        ("one-shot-x7k2p", "one-shot"),
        ("detector-model", "detector-model"),
        ("notebook", "notebook"),
    ],
)
def test_what_controllers_append_is_cut_off(pod: str, job: str) -> None:
    assert jobs.job_name(pod) == job


def test_the_rules_cut_by_the_same_patterns() -> None:
    text = (Path(packs.__file__).parent / "rules" / "jobs.yaml").read_text()
    assert f'"{jobs.HASHED}"' in text
    assert f'"{jobs.NUMBERED}"' in text
