"""`render mig`: checked layouts for NVIDIA's mig-parted, and a unit that applies one at boot.

Every model gets the layouts that divide it evenly; `render.mig_layouts` adds more, and impossible ones are rejected.
`operator` uses the same text for the MIG manager of Kubernetes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from watchkeeper.catalogue import mig
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.render import systemd, yaml_text
from watchkeeper.render.tree import RenderedFile
from watchkeeper.render.yaml_text import YamlPart

UNIT = "watchkeeper-mig.service"
DISABLED, ENABLED = "all-disabled", "all-enabled"
ABOUT = """MIG layouts for nvidia-mig-parted. Each was checked: its instances fit together on the GPU. Apply one:
  nvidia-mig-parted apply -f mig.yaml -c all-balanced
GPUs must be idle. On Kubernetes label the node instead: nvidia.com/mig.config=all-balanced"""


def files(settings: config.Settings) -> list[RenderedFile]:
    available, boot = layouts(settings), settings.render.mig_boot
    if boot not in available:
        remedy = f"Layouts are {', '.join(available)}"
        raise SettingsError(f"unknown MIG layout `{boot}`", where="render.mig_boot", remedy=remedy)
    unit = systemd.unit(UNIT, settings).replace("@LAYOUT@", boot)
    folder = settings.render.etc.strip("/")
    return [RenderedFile(f"{folder}/mig.yaml", config_text(settings)), RenderedFile(f"etc/systemd/system/{UNIT}", unit)]


def config_text(settings: config.Settings) -> str:
    return yaml_text.document(ABOUT, [YamlPart({"version": "v1", "mig-configs": layouts(settings)})])


def layouts(settings: config.Settings) -> dict[str, list[dict[str, Any]]]:
    """All layouts by name; one layout may have entries for several models."""
    entries: dict[str, list[dict[str, Any]]] = {
        DISABLED: [{"devices": "all", "mig-enabled": False}],
        ENABLED: [{"devices": "all", "mig-enabled": True, "mig-devices": {}}],
    }
    for gpu in mig.gpus():
        for profile in mig.profiles(gpu).values():
            name = f"all-{profile.name.replace('+', '.')}"
            entries.setdefault(name, []).append(_entry(gpu, {profile.name: profile.most}))
        entries.setdefault("all-balanced", []).append(_entry(gpu, _balanced(gpu)))
    for number, text in enumerate(settings.render.mig_layouts, 1):
        where = f"render.mig_layouts[{number}]"
        name, gpu, names = _read(text, where)
        entry, others = _entry(gpu, Counter(names)), entries.setdefault(name, [])
        is_for_same_gpu = any(other.get("device-filter") == entry["device-filter"] for other in others)
        if others and (name.startswith("all-") or is_for_same_gpu):
            problem = f"the layout `{name}` of {gpu} exists already"
            raise SettingsError(problem, where=where, remedy="Choose another name")
        others.append(entry)
    return entries


def _read(text: str, where: str) -> tuple[str, str, list[str]]:
    """`mixed: H100 80GB: 3g.40gb 2g.20gb 2g.20gb` as its three parts, checked."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 3 or not all(parts) or " " in parts[0]:
        remedy = "Write `NAME: GPU: PROFILE PROFILE`, as in `mixed: H100 80GB: 3g.40gb 2g.20gb 2g.20gb`"
        raise SettingsError(f"`{text[:80]}` is not a layout", where=where, remedy=remedy)
    name, gpu, names = parts[0], parts[1], parts[2].split()
    try:
        mig.place_instances(gpu, names)
    except mig.ImpossibleLayout as error:
        raise SettingsError(str(error), where=where, remedy="Use other profiles or fewer of them") from error
    return name, gpu, names


def _balanced(gpu: str) -> dict[str, int]:
    """One instance of half the GPU, one of a quarter, the smallest for the rest; two halves if none is smaller."""
    plain = [profile for profile in mig.profiles(gpu).values() if profile.is_plain]
    by_size = {(profile.compute, profile.memory): profile.name for profile in plain}
    larger = {7: ((3, 4), (2, 2)), 4: ((2, 2),), 2: ()}[mig.gpus()[gpu].compute]
    return {**{by_size[size]: 1 for size in larger}, by_size[1, 1]: 2}


def _entry(gpu: str, devices: Mapping[str, int]) -> dict[str, Any]:
    return {
        "device-filter": list(mig.gpus()[gpu].device_ids),
        "devices": "all",
        "mig-enabled": True,
        "mig-devices": dict(devices),
    }
