"""The texts that a pattern cannot do without: never missed, so that passing a line over is safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.diagnose.doctor import literals, scan, signatures
from watchkeeper.readers import kernel_log

SIGNS = [sign for sign in signatures.table().signs.values() if sign.pattern is not None]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("Got completion from peer", ("got completion from peer",)),
        ("(?:nothing free|few left) (?:gpus?)", ("few left", "nothing free")),
        (r"(?i)exit ?code: (?P<code>\d+)", ("code: ",)),
        (r"(?:abc)?\d+", ()),
        ("a|bcd", ()),
        ("(?=.*error).*nvlink", ("nvlink",)),
        ("(?!.*fatal)link down", ("link down",)),
    ],
)
def test_the_texts_of_a_pattern_are_those_that_every_match_has(pattern: str, texts: tuple[str, ...]) -> None:
    assert literals.required(pattern) == texts


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.id)
def test_the_example_of_each_sign_has_one_of_its_texts(sign: signatures.Sign) -> None:
    texts = literals.required(sign.pattern or "")
    assert not texts or any(text in sign.example.lower() for text in texts)


@given(st.data())
def test_what_a_pattern_matches_always_has_one_of_its_texts(data: st.DataObject) -> None:
    sign = data.draw(st.sampled_from(SIGNS))
    text = data.draw(st.from_regex(sign.compiled))
    texts = literals.required(sign.pattern or "")
    # Python matches a few letters beyond ASCII without regard to case that lower() keeps; logs do not have them.
    if text.isascii() and texts:
        assert any(one in text.lower() for one in texts)


def test_every_kernel_line_has_a_word_by_which_the_scan_finds_it() -> None:
    for needle, _, _ in kernel_log.PATTERNS:
        words = set(needle.encode().translate(scan.log_text.LETTERS, b"0123456789").split())
        is_part = needle in (
            "no details found",
            "fallen off the bus",
            "RmInitAdapter",
            "ut of memory: K",
            "hardware memory ",
        )
        assert is_part or words & scan.KERNEL_WORDS, needle
