"""Named groups of GPUs in a small file."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.agent.gpus import gpu_groups
from watchkeeper.agent.gpus.gpu_groups import GroupFile, find_group, find_user_file, load_all_groups
from watchkeeper.errors import SettingsError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupFile:
    monkeypatch.setattr(gpu_groups, "SYSTEM_FILE", tmp_path / "etc" / "gpu_groups.json")
    return GroupFile(tmp_path / "home" / "gpu_groups.json")


def test_a_group_is_created_found_and_deleted(own: GroupFile) -> None:
    own.create("training", ["0-3,5", "GPU-8a"])
    assert own.load() == {"training": ["0-3", "5", "GPU-8a"]}
    assert [word.text for word in find_group("training", own).selectors] == ["0", "1", "2", "3", "5", "GPU-8a"]
    assert own.delete("training")
    assert not own.delete("training")
    with pytest.raises(SettingsError, match=r"group `training` does not exist. Groups: none"):
        find_group("training", own)


def test_a_users_group_hides_a_system_group(own: GroupFile) -> None:
    GroupFile(gpu_groups.SYSTEM_FILE).create("all", ["0-7"])
    GroupFile(gpu_groups.SYSTEM_FILE).create("first", ["0"])
    own.create("first", ["1"])
    assert load_all_groups(own) == {"all": ["0-7"], "first": ["1"]}


@pytest.mark.parametrize(
    ("name", "words", "problem"),
    [
        ("0", ["1"], "group name `0` is invalid"),
        ("a b", ["1"], "is invalid"),
        ("x" * 65, ["1"], "is invalid"),
        ("ok", ["nonsense"], "group ok: `nonsense` does not select a GPU"),
        ("ok", [","], "no GPU selected"),
        ("ok", ["1"] * 257, "257 selectors, the limit is 256"),
    ],
)
def test_an_invalid_group_is_refused(own: GroupFile, name: str, words: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        own.create(name, words)
    assert own.load() == {}


def test_a_group_is_not_created_twice_or_above_the_limit(own: GroupFile, monkeypatch: pytest.MonkeyPatch) -> None:
    own.create("one", ["1"])
    with pytest.raises(SettingsError, match="group one already exists"):
        own.create("one", ["2"])
    monkeypatch.setattr(gpu_groups, "MAX_GROUPS", 1)
    with pytest.raises(SettingsError, match="there are 1 groups, the limit is 1"):
        own.create("two", ["2"])


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [1]}'])
def test_an_invalid_group_file_is_an_error_with_its_path(own: GroupFile, content: str) -> None:
    own.path.parent.mkdir()
    own.path.write_text(content)
    with pytest.raises(SettingsError, match=r"gpu_groups.json: the file is not a list"):
        own.load()


def test_each_user_has_a_file_and_root_uses_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_user_file({"WATCHKEEPER_GPU_GROUPS": "/x/y.json"}).path == Path("/x/y.json")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert find_user_file({}).path == gpu_groups.SYSTEM_FILE
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert find_user_file({"XDG_CONFIG_HOME": str(tmp_path)}).path == tmp_path / "watchkeeper" / "gpu_groups.json"
