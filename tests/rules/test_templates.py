"""Templates of labels and annotations expand as Prometheus expands them."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import servers
from watchkeeper.rules import templates
from watchkeeper.rules.template_functions import TemplateError

HOT = templates.TemplateContext(
    {"gpu": "3", "Hostname": "n7"}, 95.25, external_labels={"site": "east"}, external_url="http://hub:9480/wk"
)


def expand(text: str, context: templates.TemplateContext = HOT) -> str:
    return templates.parse_template(text).expand(context)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("GPU {{ $labels.gpu }} of {{ .Labels.Hostname }}: {{ $value }}", "GPU 3 of n7: 95.25"),
        ("{{ $externalLabels.site }} {{ .ExternalLabels.site }}", "east east"),
        ("{{ $labels.absent }}|", "|"),
        ('{{ printf "%.1f" .Value }} {{ $value | printf "%5.0f|%%" }}', "95.2    95|%"),
        ('{{ printf "%s-%v" $labels.gpu $value }} {{ printf "%d" $value }}', "3-95.25 %!d(float64=95.25)"),
        ('{{ printf "%s" }} {{ printf "x" 1 }}', "%!s(MISSING) x%!(EXTRA int=1)"),
        ("{{ if gt $value 90.0 }}hot{{ else }}cool{{ end }}", "hot"),
        ('{{ if eq $labels.gpu "4" }}a{{ else if eq $labels.gpu "3" }}b{{ else }}c{{ end }}', "b"),
        ("{{ if and $labels.gpu (not $labels.absent) }}yes{{ end }}", "yes"),
        ("{{ with $labels.gpu }}[{{ . }}]{{ end }}{{ with $labels.absent }}never{{ else }}none{{ end }}", "[3]none"),
        ("a {{- /* quiet */ -}} b {{- $labels.gpu }}", "ab3"),
        ("{{ $x := $labels.gpu }}{{ $x }}{{ $x }}", "33"),
        ('{{ reReplaceAll "n(.+)" "node-$1" $labels.Hostname }} {{ match "^n" $labels.Hostname }}', "node-7 true"),
        ('{{ "rack one" | title }} {{ toUpper "a" }} {{ toLower "B" }} {{ stripPort "n1:9400" }}', "Rack One A b n1"),
        ("{{ `raw \\d` }}", "raw \\d"),
    ],
)
def test_a_template_expands(text: str, expanded: str) -> None:
    assert expand(text) == expanded


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{{ range $name, $is := $labels }}{{ $name }}={{ $is }} {{ end }}", "Hostname=n7 gpu=3 "),
        (
            "{{ with $x := $labels.gpu }}{{ $x }}{{ end }}{{ if $y := $labels.absent }}{{ $y }}{{ else }}no{{ end }}",
            "3no",
        ),
        ("{{ $n := 0 }}{{ range $labels }}{{ $n = . }}{{ end }}{{ $n }}", "3"),
        ("{{ range $labels }}{{ . }}{{ break }}{{ end }}", "n7"),
        ('{{ range $labels }}{{ if eq . "n7" }}{{ continue }}{{ end }}{{ . }}{{ end }}', "3"),
        ("{{ externalURL }} {{ pathPrefix }}", "http://hub:9480/wk /wk"),
        ('{{ graphLink "up > 0" }}', "/graph?g0.expr=up+%3E+0&g0.tab=0"),
        ('{{ (args 1 "b").arg1 }} {{ parseDuration "1h30m" }} {{ print 1 2 "a" 3 }}', "b 5400 1 2a3"),
        ('{{ and $labels.absent (first $labels.absent) }}{{ or "x" (first $labels.absent) }}', "x"),
        ("{{ title `1k 3rd n1` }}", "1K 3Rd N1"),
        ('{{ title "rack-one it\'s" }} {{ html "<b>" }} {{ urlquery "a b" }}', "Rack-One It's &lt;b&gt; a+b"),
        (
            '{{ stripPort "[::1]:9" }} {{ stripDomain "n1.lan:9" }} {{ stripDomain "10.0.0.1:9" }}',
            "::1 n1:9 10.0.0.1:9",
        ),
        ('{{ printf "%t %x %q %b %[1]v %T" true 255 "a\\n" 5 }}', 'true ff "a\\n" 101 true int'),
        ('{{ printf "%g %v %G" 1e6 1234567.5 1e-9 }} {{ printf "%" }}', "1e+06 1.2345675e+06 1E-09 %!(NOVERB)"),
    ],
)
def test_variables_blocks_and_functions_are_those_of_prometheus(text: str, expanded: str) -> None:
    assert expand(text) == expanded


NAMED = [
    ('{{ define "x" }}[{{ . }}{{ $ }}]{{ end }}{{ template "x" $labels.gpu }}-{{ template "x" 7 }}', "[33]-[77]"),
    ('a{{ define "x" -}} b {{- end }}c{{ template "x" }}', "acb"),
    ('{{ block "y" $value }}<{{ . }}>{{ end }}{{ template "y" "z" }}', "<95.25><z>"),
    ('{{ define "in" }}{{ . }},{{ end }}{{ range $labels }}{{ template "in" . }}{{ end }}', "n7,3,"),
    ('{{ slice "abcd" 1 3 }}{{ slice "abcd" 3 }} {{ js "it\'s <b>" }}', "bcd it\\'s \\u003Cb\\u003E"),
    ('{{ (1700000000.5 | toTime).Format "Mon Jan _2 15:04:05.000 2006" }}', "Tue Nov 14 22:13:20.500 2023"),
    (
        '{{ $t := toTime 1700000000 }}{{ $t.Format "2006-01-02T15:04:05Z07:00, 3:04 PM" }}',
        "2023-11-14T22:13:20Z, 10:13 PM",
    ),
    (
        "{{ with toTime 1.7e9 }}{{ .Year }} {{ .Month }} {{ .Day }} {{ .Weekday }} {{ .YearDay }} {{ .Unix }}{{ end }}",
        "2023 November 14 Tuesday 318 1700000000",
    ),
    ("{{ eq 1 2 1 }} {{ ne $labels.gpu `4` }} {{ gt $value 5.0 }} {{ lt 1 2 }}", "true true true true"),
]


@pytest.mark.parametrize(("text", "expanded"), NAMED)
def test_named_templates_times_and_comparisons_are_those_of_go(text: str, expanded: str) -> None:
    assert expand(text) == expanded


@pytest.mark.servers
def test_promtool_expands_them_to_the_same(tmp_path: Path) -> None:
    annotations = {f"t{at}": text for at, (text, _) in enumerate(NAMED)}
    expected = {f"t{at}": expanded for at, (_, expanded) in enumerate(NAMED)}
    alert = {"alert": "A", "expr": "x * 1", "annotations": annotations}
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "g", "rules": [alert]}]}))
    expected_alert = {"exp_labels": dict(HOT.labels), "exp_annotations": expected}
    series = {"series": 'x{gpu="3",Hostname="n7"}', "values": "95.25"}
    test = {"eval_time": "0s", "alertname": "A", "exp_alerts": [expected_alert]}
    story = {"input_series": [series], "interval": "1m", "alert_rule_test": [test]}
    (tmp_path / "test.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [story]}))
    command = [servers.require("promtool"), "test", "rules", tmp_path / "test.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("value", "function", "expanded"),
    [
        (0.0, "humanize", "0"),
        (1234567.0, "humanize", "1.235M"),
        (0.00123, "humanize", "1.23m"),
        (math.inf, "humanize", "+Inf"),
        (-4_000_000.0, "humanize1024", "-3.815Mi"),
        (0.5, "humanize1024", "0.5"),
        (0.0, "humanizeDuration", "0s"),
        (0.05, "humanizeDuration", "50ms"),
        (59.4567, "humanizeDuration", "59.46s"),
        (899.99, "humanizeDuration", "14m 59s"),
        (90_061.0, "humanizeDuration", "1d 1h 1m 1s"),
        (-3600.0, "humanizeDuration", "-1h 0m 0s"),
        (0.1234567, "humanizePercentage", "12.35%"),
        (1435065584.128, "humanizeTimestamp", "2015-06-23 13:19:44.128 +0000 UTC"),
        (99.99999, "humanizeTimestamp", "1970-01-01 00:01:39.999 +0000 UTC"),
        (math.nan, "humanizeTimestamp", "NaN"),
    ],
)
def test_numbers_are_made_readable_as_prometheus_does(value: float, function: str, expanded: str) -> None:
    assert expand(f"{{{{ $value | {function} }}}}", templates.TemplateContext({}, value)) == expanded


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (95.0, "95"),
        (0.05, "0.05"),
        (999_999.5, "999999.5"),
        (1_048_576.0, "1.048576e+06"),
        (-1_234_567.891, "-1.234567891e+06"),
        (1e20, "1e+20"),
        (1e21, "1e+21"),
        (1e-5, "1e-05"),
        (1.5e-7, "1.5e-07"),
    ],
)
def test_a_value_is_shown_as_go_prints_it(value: float, shown: str) -> None:
    assert expand("{{ $value }}", templates.TemplateContext({}, value)) == shown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ humanise $value }}", 'function "humanise" not defined'),
        ("{{ $lables.gpu }}", "undefined variable $lables"),
        ("{{ if $value }}x", "has no `{{end}}`"),
        ("x{{ end }}", "unexpected {{end}}"),
        ("{{ $value", "no matching"),
        ("{{ $value | $labels.gpu }}", "only a function"),
        ("{{ $labels.gpu 3 }}", "only a function can have arguments"),
        ('{{ printf "%s" (toUpper $labels.gpu }}', "no matching `)`"),
        ("{{ }}", "empty"),
        ("{{ template x }}", 'function "x" not defined'),
        ("{{ template 5 }}", "a quoted name"),
        ('{{ define "x" }}{{ $labels.gpu }}{{ end }}', "undefined variable $labels"),
        ('{{ if 1 }}{{ define "x" }}{{ end }}{{ end }}', "outside of all blocks"),
        ('{{ define "x" }}a{{ end }}{{ define "x" }}b{{ end }}', "multiple definition"),
        ('{{ range $labels }}{{ block "x" . }}{{ break }}{{ end }}{{ end }}', "outside {{range}}"),
        ('{{ block "x" . }}', "has no `{{end}}`"),
        ("{{ break }}", "outside {{range}}"),
        ("{{ $x = 1 }}", "undefined variable $x"),
        ("{{ with $a, $b := 1 }}{{ end }}", "allows only one variable"),
        ("{{ " + "(" * 200 + "1" + ")" * 200 + " }}", "deeper than 30"),
        ("{{ if 1 }}" * 200 + "{{ end }}" * 200, "deeper than 30"),
    ],
)
def test_a_mistake_is_found_when_the_file_is_loaded(text: str, problem: str) -> None:
    with pytest.raises(TemplateError) as caught:
        templates.parse_template(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{{ "x" | humanize }}',
        '{{ query "up" | first | value }}',
        "{{ toUpper }}",
        '{{ lt "a" 1 }}',
        "{{ gt $value 5 }}",
        "{{ eq 1 1.0 }}",
        '{{ template "x" }}',
        '{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}',
        '{{ define "x" }}{{ range . }}{{ template "x" $ }}{{ end }}{{ end }}{{ template "x" $labels }}',
        '{{ slice "abc" 2 1 }}',
        '{{ $x := $labels }}{{ $x.gpu "a" }}',
        "{{ $value.x }}",
        "{{ .labels.gpu }}",
    ],
)
def test_a_failed_template_does_not_prevent_the_alert(text: str) -> None:
    assert expand(text).startswith("<error expanding template: ")


def test_a_query_feeds_a_range() -> None:
    rows = [{"Labels": {"gpu": "1"}, "Value": 2.0}, {"Labels": {"gpu": "5"}, "Value": 3.0}]
    context = templates.TemplateContext({}, 0.0, query=lambda expr: rows if expr == "up" else [])
    assert expand('{{ range query "up" }}{{ .Labels.gpu }}={{ .Value }} {{ end }}', context) == "1=2 5=3 "
    assert expand('{{ query "up" | first | value }}{{ query "up" | first | label "gpu" }}', context) == "21"
    assert expand('{{ range query "nothing" }}x{{ else }}none{{ end }}', context) == "none"
    assert expand('{{ range $at, $row := query "up" }}{{ $at }}:{{ $row.Value }} {{ end }}', context) == "0:2 1:3 "
    assert expand('{{ (query "up" | first).Labels.gpu }} {{ query "up" | first }}', context) == "1 {map[gpu:1] 2}"


@given(st.text(alphabet='{}-$.|"` abgpulesif()end%_:=0', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(TemplateError):
        templates.parse_template(text).expand(HOT)
