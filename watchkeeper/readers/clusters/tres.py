"""The GPUs of a job in Slurm's accounting, by type: `gres/gpu:h200=4` is four, a MIG slice is its part of one GPU.

A shard or a share of MPS is a part of a GPU too, but its line does not say how large: `is_share_of_unknown_size` tells
such a job from one without a GPU. `accounting.job_files` and `capacity.jobs` read AllocTRES and ReqTRES here.
"""

from __future__ import annotations

import re

from watchkeeper.catalogue import mig
from watchkeeper.readers.clusters import slurm_records

# 3g.71gb · h200_3g.71gb · nvidia_a100_1g.10gb+me: a site may put the model before the profile.
SLICE = re.compile(r"(?:(?P<model>.+)_)?(?P<profile>[1-7]g\.\d+gb(?:[+-](?:me|gfx|me\.all))?)", re.IGNORECASE)
SHARE = re.compile(r"(?:^|,)gres/(?:shard|mps)[:=]")


def gpus_by_type(text: str, *, model: str = "") -> dict[str, float]:
    """How many GPUs of each type; the type is empty where the line names none. Empty for a job without GPUs.

    `model` is the GPU of slices that name none; ValueError for one that is a part of several GPUs and not the same.
    """
    found: dict[str, float] = {}
    total, typed = 0, 0
    for match in slurm_records.GPUS.finditer(text):
        count, kind = int(match["count"] or 1), match["type"] or match["alone"]
        if kind is None:
            total += count
            continue
        typed += count
        cut = SLICE.fullmatch(kind)
        named = kind if cut is None else cut["model"] or ""
        part = 1.0 if cut is None else _share(cut["profile"].lower(), named or model)
        found[named] = found.get(named, 0.0) + count * part
    # `gres/gpu=4` stands beside the types that it is made of.
    if total > typed:
        found[""] = found.get("", 0.0) + total - typed
    return found


def is_share_of_unknown_size(text: str) -> bool:
    return SHARE.search(text) is not None


def _share(profile: str, model: str) -> float:
    found = mig.gpu_share(profile, model)
    if found is None:
        raise ValueError(f"{profile} is another part of each GPU that has it: of which model is it?")
    return found
