"""What is written, left alone, removed and refused."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as some

from watchkeeper.render import tree
from watchkeeper.render.tree import FileStatus, RenderedFile

TARGET = "prometheus"
PATHS = some.sampled_from(["a.yaml", "b.sh", "c.json", "deep/d.conf", "README.md"])
TEXTS = some.text(some.characters(codec="utf-8", exclude_characters="\r"), max_size=60).map(lambda text: text + "\n")
TREES = some.dictionaries(PATHS, TEXTS, min_size=1)


def files(texts: dict[str, str]) -> list[RenderedFile]:
    return tree.with_stamps([RenderedFile(path, text) for path, text in texts.items()], TARGET)


def on_disk(texts: dict[str, str]) -> dict[str, str]:
    return {file.path: file.text for file in files(texts)}


def standings(texts: dict[str, str], existing: dict[str, str]) -> dict[str, FileStatus]:
    return {step.path: step.status for step in tree.plan(files(texts), existing, TARGET)}


@hypothesis.given(TREES)
def test_what_was_rendered_is_unchanged_when_it_is_rendered_again(texts: dict[str, str]) -> None:
    assert set(standings(texts, on_disk(texts)).values()) == {FileStatus.UNCHANGED}


@hypothesis.given(TREES, TREES)
def test_what_nobody_touched_may_always_be_replaced_or_removed(before: dict[str, str], after: dict[str, str]) -> None:
    assert not [step for step in tree.plan(files(after), on_disk(before), TARGET) if step.status.is_refused]


@hypothesis.given(TREES, some.data())
def test_what_a_person_edited_is_never_replaced_or_removed(texts: dict[str, str], dice: some.DataObject) -> None:
    edited = dice.draw(some.sampled_from(sorted(texts)))
    existing = on_disk(texts)
    existing[edited] += "mine\n"
    other = {path: text + "more\n" for path, text in texts.items()}
    assert standings(other, existing)[edited] is FileStatus.EDITED
    assert standings({"z.yaml": "z\n"}, existing)[edited] is FileStatus.EDITED


def test_a_file_that_was_there_before_is_foreign() -> None:
    assert standings({"a.yaml": "x: 1\n"}, {"a.yaml": "y: 2\n"}) == {"a.yaml": FileStatus.FOREIGN}
    assert standings({"c.json": "{}\n"}, {"c.json": "[]\n"})["c.json"] is FileStatus.FOREIGN


def test_a_file_that_is_no_longer_rendered_is_removed_and_those_of_others_stay() -> None:
    existing = on_disk({"a.yaml": "a\n", "c.json": "{}\n"}) | {"own.yaml": "mine\n"}
    existing["theirs.yaml"] = tree.with_stamps([RenderedFile("theirs.yaml", "x\n")], "alertmanager")[0].text
    assert standings({"a.yaml": "a\n"}, existing) == {
        "a.yaml": FileStatus.UNCHANGED,
        "c.json": FileStatus.REMOVED,
        f".rendered-{TARGET}.sha256": FileStatus.REMOVED,
    }


def test_the_stamp_stands_below_the_line_that_names_the_shell() -> None:
    (script,) = files({"b.sh": "#!/bin/bash\nexit 0\n"})
    assert script.text.splitlines()[0] == "#!/bin/bash"
    assert tree.STAMP.match(script.text.splitlines(keepends=True)[1])
