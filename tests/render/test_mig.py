"""MIG layouts: every one that is written is possible, and an impossible one is refused with both numbers."""

from __future__ import annotations

import hypothesis
import pytest
import yaml
from hypothesis import strategies as some

from watchkeeper.catalogue import mig as profiles
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.render import mig

H100 = "H100 80GB"
ANY_LAYOUT = some.sampled_from(sorted(profiles.gpus())).flatmap(
    lambda gpu: some.tuples(some.just(gpu), some.lists(some.sampled_from(sorted(profiles.profiles(gpu))), max_size=8))
)


def with_layouts(*layouts: str, boot: str = "all-disabled") -> config.Settings:
    return loading.load(None, {"render.mig_layouts": list(layouts), "render.mig_boot": boot})


def test_every_layout_that_is_written_fits_on_its_gpu() -> None:
    plain = yaml.safe_load(mig.config_text(with_layouts(f"mixed: {H100}: 3g.40gb 2g.20gb 1g.10gb 1g.10gb")))
    by_ids = {gpu.device_ids: gpu.name for gpu in profiles.gpus().values()}
    checked = 0
    for name, entries in plain["mig-configs"].items():
        for entry in entries:
            if entry.get("device-filter"):
                gpu = by_ids[tuple(entry["device-filter"])]
                wanted = [one for one, count in entry["mig-devices"].items() for _ in range(count)]
                assert len(profiles.place_instances(gpu, wanted)) == len(wanted), name
                checked += 1
    assert checked > 50


@hypothesis.given(ANY_LAYOUT)
def test_a_layout_that_is_accepted_overlaps_nowhere(layout: tuple[str, list[str]]) -> None:
    gpu, names = layout
    try:
        placed = profiles.place_instances(gpu, names)
    except profiles.ImpossibleLayout:
        return
    known = profiles.profiles(gpu)
    taken = [slot for name, start in placed for slot in range(start, start + known[name].memory)]
    assert len(taken) == len(set(taken)) <= profiles.gpus()[gpu].memory
    assert all(start in known[name].starts for name, start in placed)
    assert sum(known[name].compute for name in names) <= profiles.gpus()[gpu].compute


@pytest.mark.parametrize(
    ("names", "said"),
    [
        # The guides' `mig -cgi 9,9,9,19`.
        ("3g.40gb 3g.40gb 3g.40gb 1g.10gb", "3 of 3g.40gb on H100 80GB: at most 2 fit"),
        ("3g.40gb 3g.40gb 1g.10gb", "it needs 9 of 8 memory slices"),
        ("7g.80gb 1g.10gb", "needs 8 compute slices, H100 80GB has 7"),
        ("3g.20gb", "`3g.20gb` is not a profile of H100 80GB"),
        ("1g.10gb+me 1g.10gb+me", "2 of 1g.10gb+me on H100 80GB: at most 1 fit"),
    ],
)
def test_an_impossible_layout_is_refused_with_both_numbers(names: str, said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        mig.files(with_layouts(f"mine: {H100}: {names}"))
    assert said in str(refused.value)
    assert str(refused.value).startswith("render.mig_layouts[1]: ")


@pytest.mark.parametrize("layout", ["mine", "a b: H100 80GB: 1g.10gb", "mine: H100 80GB:"])
def test_a_layout_that_cannot_be_read_says_how_one_looks(layout: str) -> None:
    with pytest.raises(SettingsError, match="NAME: GPU: PROFILE"):
        mig.layouts(with_layouts(layout))


def test_one_layout_may_divide_several_models_but_each_once() -> None:
    both = with_layouts("mine: H100 80GB: 7g.80gb", "mine: H200 141GB: 3g.71gb 3g.71gb", boot="mine")
    assert len(mig.layouts(both)["mine"]) == 2
    assert "-c mine" in mig.files(both)[1].text
    with pytest.raises(SettingsError, match="exists already"):
        mig.layouts(with_layouts("mine: H100 80GB: 7g.80gb", "mine: H100 80GB: 3g.40gb"))


def test_the_boot_unit_names_a_layout_that_exists() -> None:
    with pytest.raises(SettingsError, match="unknown MIG layout `none`"):
        mig.files(with_layouts(boot="none"))


@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("NVIDIA-H100-80GB-HBM3", "H100 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA H200", "H200 141GB"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 96GB"),
        ("NVIDIA L40S", None),
    ],
)
def test_a_gpu_is_known_by_the_name_that_the_driver_gives_it(model: str, gpu: str | None) -> None:
    found = profiles.gpu_of_model(model)
    assert (found and found.name) == gpu


def test_every_gpu_has_its_own_ids_and_names() -> None:
    for field in ("device_ids", "models"):
        given = [one for gpu in profiles.gpus().values() for one in getattr(gpu, field)]
        assert len(given) == len(set(given))


@pytest.mark.parametrize("gpu", profiles.gpus())
def test_the_table_of_a_gpu_agrees_with_itself(gpu: str) -> None:
    whole, known = profiles.gpus()[gpu], profiles.profiles(gpu)
    one_slice = min(one.memory_mib for one in known.values() if one.memory == 1)
    for name, one in known.items():
        assert name.startswith(f"{one.compute}g."), "a name says its compute slices"
        # The driver keeps some memory of every instance: never more than the gigabytes of the name, and a larger one
        # has at least as much as its slices apart.
        assert one.memory * one_slice <= one.memory_mib <= 1024 * int(name.partition(".")[2].partition("gb")[0]), name
        assert all(start + one.memory <= whole.memory for start in one.starts)
        assert profiles.fits(gpu, (name,) * one.most)
        assert not profiles.fits(gpu, (name,) * (one.most + 1))


def test_an_instance_with_all_media_engines_leaves_none_for_others() -> None:
    gpu = "RTX PRO 6000 96GB"
    assert profiles.fits(gpu, ("2g.48gb+me.all", "1g.24gb-me", "1g.24gb-me"))
    with pytest.raises(profiles.ImpossibleLayout, match=r"2g\.48gb\+me\.all has all media engines"):
        profiles.place_instances(gpu, ["2g.48gb+me.all", "1g.24gb"])
