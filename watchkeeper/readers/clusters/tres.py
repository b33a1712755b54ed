"""Count the GPUs of a job in Slurm's accounting, by type: `gres/gpu:h200=4` is 4, a MIG instance a fraction of a GPU.

A shard or MPS share is a fraction of a GPU too, but its size is not recorded: `is_share_of_unknown_size` distinguishes
such a job from one without GPUs. `accounting.job_files` and `capacity.jobs` parse AllocTRES and ReqTRES with it.
"""

from __future__ import annotations

import re

from watchkeeper.catalogue import mig
from watchkeeper.readers.clusters import slurm_records

# 3g.71gb · h200_3g.71gb · nvidia_a100_1g.10gb+me: a site may put the model before the profile.
SLICE = re.compile(r"(?:(?P<model>.+)_)?(?P<profile>[1-7]g\.\d+gb(?:[+-](?:me|gfx|me\.all))?)", re.IGNORECASE)
SHARE = re.compile(r"(?:^|,)gres/(?:shard|mps)[:=]")


def gpus_by_type(text: str, *, model: str = "") -> dict[str, float]:
    """The number of GPUs of each type, with "" for GPUs without a type; empty for a job without GPUs."""
    # `model` is the GPU model of MIG profiles that name none; ValueError if the share of such a profile depends on it.
    gpus: dict[str, float] = {}
    total, typed = 0, 0
    for match in slurm_records.GPUS.finditer(text):
        count, kind = int(match["count"] or 1), match["type"] or match["alone"]
        if kind is None:
            total += count
            continue
        typed += count
        type_name, share = kind, 1.0
        if slice_match := SLICE.fullmatch(kind):
            profile, type_name = slice_match["profile"].lower(), slice_match["model"] or ""
            known_share = mig.gpu_share(profile, type_name or model)
            if known_share is None:
                raise ValueError(f"{profile} is a different share of each GPU model; name the GPU model")
            share = known_share
        gpus[type_name] = gpus.get(type_name, 0.0) + count * share
    # `gres/gpu=4` is the total of the types listed beside it.
    if total > typed:
        gpus[""] = gpus.get("", 0.0) + total - typed
    return gpus


def is_share_of_unknown_size(text: str) -> bool:
    return SHARE.search(text) is not None
