"""What a page of metrics means, line by line and page after page."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.errors import CollectError
from watchkeeper.kit import own_metrics
from watchkeeper.model.labels import Labels
from watchkeeper.readers.exposition import ExpositionPage, ExpositionParser, FamilyMetadata

TEMPERATURE = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",modelName="NVIDIA H200"} '


def read(text: str | bytes, **options: bool) -> tuple[dict[str, float], ExpositionPage]:
    parser = ExpositionParser()
    page = parser.parse(text.encode() if isinstance(text, str) else text, **options)
    return {str(parser.labels[handle]): value for handle, value in zip(page.handles, page.values, strict=True)}, page


def test_a_dcgm_line_becomes_its_labels_and_its_value() -> None:
    found, page = read(f"# HELP x y\n# TYPE x gauge\n{TEMPERATURE}41\n")
    assert found == {'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1", gpu="0", modelName="NVIDIA H200"}': 41.0}
    assert page.bad_lines == 0


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("up 0", 0.0),
        ("up +Inf", math.inf),
        ("up -Inf", -math.inf),
        ("up 1.5e-3", 0.0015),
        ("up\t7", 7.0),
        ("up   7  ", 7.0),
        ("up{} 7", 7.0),
        ("up 7\r", 7.0),
        ("  up 7", 7.0),
    ],
)
def test_a_value_may_be_written_in_every_legal_way(line: str, value: float) -> None:
    assert read(line)[0] == {"up": value}


def test_nan_is_a_value_like_others() -> None:
    assert math.isnan(read("up NaN\n")[0]["up"])


def test_escapes_spaces_and_braces_inside_quotes_belong_to_the_value() -> None:
    found, _ = read(rb'x{a="say \"hi\", C:\\dir\nend} 5",b="\d",} 1' + b"\n")
    assert found == {str(Labels({"__name__": "x", "a": 'say "hi", C:\\dir\nend} 5', "b": r"\d"})): 1.0}


def test_labels_that_were_read_on_another_line_count_only_where_they_are_whole() -> None:
    gpu = '{gpu="0",UUID="GPU-1"}'
    lines = [f"a{gpu} 1", f"b{gpu} 2", f"c {gpu} 3", f"9{gpu} 4", f"{gpu} 5", f'd{gpu[:-1]},x="}}"}} 6', f"a{gpu}x 7"]
    found, page = read("\n".join(lines))
    labels = {"gpu": "0", "UUID": "GPU-1"}
    named = {str(Labels({"__name__": name, **labels})): value for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    assert found == {**named, str(Labels({"__name__": "d", **labels, "x": "}"})): 6.0}
    assert page.bad_lines == 3


def test_bad_lines_are_named_and_good_ones_kept() -> None:
    lines = ["a 1", "b", "c{x=1} 2", "d 1_000", "e 0x1p3", 'f{x="1",x="2"} 3', "9g 1", "h 1 2 3", "i 2", "j N/A"]
    found, page = read("\n".join(lines))
    assert found == {"a": 1.0, "i": 2.0}
    assert page.bad_lines == 8
    assert page.problems[0].startswith("line 2: ")
    assert page.problems[2] == "line 4: value '1_000' is not a number"
    assert len(page.problems) == 5


def test_a_time_that_no_store_could_hold_is_a_bad_line() -> None:
    found, page = read("a 1 -99999999999999999999\nb 2 -9223372036854775807\n")
    assert (found, page.timestamps_ms) == ({"b": 2.0}, {0: -9223372036854775807})
    assert page.problems == ("line 1: timestamp '-99999999999999999999' has more than 64 bits",)


def test_a_value_that_turns_bad_on_a_known_line_is_named_and_comes_back() -> None:
    parser = ExpositionParser()
    parser.parse(b"a 1\nb 2\n")
    page = parser.parse(b"a 1\nb oops\n")
    assert (list(page.values), page.problems) == ([1.0], ("line 2: value 'oops' is not a number",))
    assert list(parser.parse(b"a 1\nb 1_0\n").values) == [1.0]
    assert list(parser.parse(b"a 1\nb 3\n").values) == [1.0, 3.0]


def test_a_time_at_the_end_of_a_line_belongs_to_its_sample_alone() -> None:
    for parse_twice in (ExpositionParser(),):
        for _ in range(2):
            page = parse_twice.parse(b"a 1\nb 2 1700000000123\nc 3 -5\nd 4\t77\n")
            assert (list(page.values), page.timestamps_ms) == ([1, 2, 3, 4], {1: 1_700_000_000_123, 2: -5, 3: 77})


def test_the_same_series_keep_the_same_handle_list() -> None:
    parser = ExpositionParser()
    first = parser.parse(b"a 1\nb 2\n")
    second = parser.parse(b"a 3\nb 4\n")
    assert second.handles is first.handles
    assert second.values == array("d", [3, 4])
    assert parser.parse(b"b 4\n").handles == [1]


def test_two_spellings_of_one_series_are_one_and_the_first_counts() -> None:
    found, page = read('a{x="1",y="2"} 1\na{y="2",x="1",} 5\n')
    assert found == {'a{x="1", y="2"}': 1.0}
    assert page.problems == ('\'a{x="1", y="2"}\' is a duplicate; the first sample was kept',)


def test_a_series_that_stood_there_at_two_times_does_not_stand_there_twice_without_them() -> None:
    parser = ExpositionParser()
    assert list(parser.parse(b"a 1 5\na 2 6\n").values) == [1, 2]
    assert list(parser.parse(b"a 1\na 2\n").values) == [1]


def test_what_the_exporter_says_about_a_metric_is_kept() -> None:
    parser = ExpositionParser()
    parser.parse(b"# HELP a Lines \\\\ and\\nbreaks.\n# TYPE a counter\n#plain\n# TYPE\na 1\n")
    assert parser.families == {"a": FamilyMetadata("counter", "Lines \\ and\nbreaks.")}
    parser.parse(b"# TYPE a gauge\na 1\n")
    assert parser.families["a"].type == "gauge"


def test_openmetrics_ends_with_eof_and_may_carry_exemplars() -> None:
    text = '# TYPE a histogram\n# UNIT a seconds\na_bucket{le="1"} 8 # {t="x y"} 0.67\na_created 1.5 2.5\n# EOF\n'
    found, page = read(text, openmetrics=True)
    assert found == {'a_bucket{le="1"}': 8.0, "a_created": 1.5}
    assert page.timestamps_ms == {1: 2500}
    assert page.exemplars == ((0, Labels({"t": "x y"}), 0.67, None),)


def test_an_exemplar_is_told_once_and_again_when_it_has_changed() -> None:
    parser = ExpositionParser()
    line = b'a{x="1 # {y"} 5 # {t="%s"} 2 1.5\n# EOF\n'
    pages = [parser.parse(line % trace, openmetrics=True) for trace in (b"p", b"p", b"q")]
    assert [page.values.tolist() for page in pages] == [[5.0]] * 3
    told = [[(handle, dict(labels), value, at_ms) for handle, labels, value, at_ms in page.exemplars] for page in pages]
    assert told == [[(0, {"t": "p"}, 2.0, 1500)], [], [(0, {"t": "q"}, 2.0, 1500)]]
    assert pages[0].handles is pages[2].handles


@pytest.mark.parametrize("exemplar", ['{t="x} 1', '{t="x"}', '{t="x"} one', '{t="x"} 1 2 3', "{t=1} 1"])
def test_a_broken_exemplar_is_named_and_its_sample_kept(exemplar: str) -> None:
    found, page = read(f"a_total 3 # {exemplar}\n# EOF\n", openmetrics=True)
    assert (found, page.bad_lines, page.exemplars) == ({"a_total": 3.0}, 1, ())
    assert page.problems[0].startswith("line 1: the exemplar was dropped, its sample was kept: ")


def test_an_exemplar_beside_a_bad_line_is_not_lost() -> None:
    parser = ExpositionParser()
    parser.parse(b"a_total 1\nb 1\n# EOF\n", openmetrics=True)
    page = parser.parse(b'a_total 1 # {t="x"} 1\nb 1_0\n# EOF\n', openmetrics=True)
    assert (page.bad_lines, len(page.exemplars)) == (1, 1)


def test_an_openmetrics_page_without_its_end_is_refused() -> None:
    with pytest.raises(CollectError, match="truncated"):
        read("a 1\n", openmetrics=True)


def test_a_page_with_too_many_series_is_refused_with_both_numbers() -> None:
    parser = ExpositionParser(max_series=3)
    with pytest.raises(CollectError, match="has 4 samples, the limit is 3"):
        parser.parse(b"# c\na 1\nb 1\nc 1\nd 1\n")
    assert list(parser.parse(b"a 1\n").values) == [1.0]


def test_series_that_come_and_go_are_forgotten_in_the_end() -> None:
    parser = ExpositionParser()
    epochs = [parser.parse("".join(f'a{{pod="{n}-{i}"}} 1\n' for i in range(100)).encode()).epoch for n in range(30)]
    assert epochs[-1] > 0
    assert len(parser.labels) < 1500


names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
metric_names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
series = st.builds(lambda name, rest: Labels({**rest, "__name__": name}), metric_names, st.dictionaries(names, texts))
pages = st.dictionaries(series, st.floats(), max_size=8)


def render(page: dict[Labels, float]) -> bytes:
    lines = []
    for labels, value in page.items():
        inside = ",".join(f'{k}="{own_metrics.escape(v)}"' for k, v in labels.items() if k != "__name__")
        lines.append(f"{labels.name}{{{inside}}} {value!r}\n")
    return "".join(lines).encode()


@pytest.mark.slow
@given(pages, st.lists(st.floats(), min_size=8, max_size=8))
def test_reading_what_was_written_gives_it_back_cold_and_warm(page: dict[Labels, float], later: list[float]) -> None:
    parser = ExpositionParser()
    # From the third page on, the parser knows how the page is laid out.
    for values in (list(page.values()), later[: len(page)], list(page.values()), later[: len(page)]):
        read_back = parser.parse(render(dict(zip(page, values, strict=True))))
        assert read_back.bad_lines == 0
        assert [parser.labels[handle] for handle in read_back.handles] == list(page)
        assert [repr(value) for value in read_back.values] == [repr(value) for value in values]


# Lines that are alike, so that a parser which remembers one of them is tempted to read another as if it were that.
ALIKE = (
    *("a 1", "a 2.5", "a12", "a  7", "a\t8", "a 1 5", "a 1_0", "a", "a oops", "a NaN", 'a{x="1"} 4', 'a{x="1"}3'),
    *("1", " 5", "nan", "", " ", "# HELP a b", "# HELP a b c", "# HELP a b 7", "aa 6", "a 3\r", 'a 4 # {t="1"} 2'),
)


@pytest.mark.slow
@given(st.lists(st.sampled_from(ALIKE), max_size=3), st.lists(st.sampled_from(ALIKE), max_size=3), st.booleans())
def test_what_a_parser_remembers_does_not_change_what_it_reads(
    known: list[str], asked: list[str], openmetrics: bool
) -> None:
    end = ["# EOF", ""] if openmetrics else [""]
    before, page = ("\n".join([*lines, *end]).encode() for lines in (known, asked))
    parser = ExpositionParser()
    for _ in range(3):
        parser.parse(before, openmetrics=openmetrics)
    found = parser.parse(page, openmetrics=openmetrics)
    expected, fresh = read(page, openmetrics=openmetrics)
    read_back = {str(parser.labels[handle]): value for handle, value in zip(found.handles, found.values, strict=True)}
    assert repr(read_back) == repr(expected)
    assert (found.problems, found.timestamps_ms) == (fresh.problems, fresh.timestamps_ms)


@given(st.lists(st.binary(max_size=300), max_size=3), st.booleans())
def test_no_bytes_can_break_the_parser(blobs: list[bytes], openmetrics: bool) -> None:
    parser = ExpositionParser()
    for blob in blobs:
        page = parser.parse(blob + (b"\n# EOF\n" if openmetrics else b""), openmetrics=openmetrics)
        assert len(page.handles) == len(page.values)


def test_names_of_any_characters_stand_in_quotes() -> None:
    lines = [
        '# TYPE "gpu.temp" gauge',
        '{"gpu.temp", "k8s.pod"="a", node="n1"} 41',
        '{"say \\"hi\\""} 2',
        'plain{"a.b"="c"} 3',
        *('{"x","y"} 4', '{"x",""="1"} 5', '{""} 6', 'z{"q"} 7'),
    ]
    parser = ExpositionParser()
    for _ in range(2):
        page = parser.parse("\n".join(lines).encode())
        assert [str(parser.labels[at]) for at in page.handles] == [
            '{"gpu.temp", "k8s.pod"="a", node="n1"}',
            '{"say \\"hi\\""}',
            'plain{"a.b"="c"}',
        ]
        assert (list(page.values), page.bad_lines) == ([41.0, 2.0, 3.0], 4)
    assert parser.families["gpu.temp"] == FamilyMetadata("gauge")


def test_a_name_of_a_megabyte_is_a_bad_line() -> None:
    found, page = read(f"{'a' * 1_000_000} 1\nb 2\n")
    assert (found, page.bad_lines) == ({"b": 2.0}, 1)
    assert page.problems == ("line 1: the name has 1,000,000 characters, the limit is 4,096",)
