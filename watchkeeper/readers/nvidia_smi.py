"""Read GPUs with named values and line numbers from any output format of nvidia-smi.

`-q` prints indented text, `-q -x` XML, no option a table, `--query-gpu` CSV. The names of `-q` and XML differ only in
spelling, so keys are normalised: `ecc_errors/volatile/dram_uncorrectable`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

# An 8-GPU node has about 2,000 values; a text with far more is not from nvidia-smi.
MAX_VALUES = 200_000
MAX_XML_DEPTH = 30


@dataclass(frozen=True, slots=True)
class Value:
    text: str
    line: int

    @property
    def number(self) -> float | None:
        """The leading number of `56 C`, `600.00 W` or `16x`; None for N/A."""
        match = re.match(r"\s*(-?\d+(?:\.\d+)?)", self.text)
        return None if match is None else float(match[1])


@dataclass(slots=True)
class GpuReading:
    """One GPU in one output; `name` is its address or index as printed."""

    name: str
    line: int
    index: str | None = None
    values: dict[str, Value] = field(default_factory=dict)

    def find_all(self, *suffixes: str) -> Iterator[tuple[str, Value]]:
        return ((key, value) for key, value in self.values.items() if key.endswith(suffixes))

    def find(self, *suffixes: str) -> Value | None:
        return next((value for _, value in self.find_all(*suffixes)), None)


class NotNvidiaSmi(Exception):
    """The text is not output of nvidia-smi."""


# GPU 00000000:2D:00.0
QUERY_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+)\s*$")
# "    GPU Current Temp                  : 56 C"   and   "    Temperature"
QUERY_LINE = re.compile(r"^(\s*)(\S[^:]*?)\s*(?::\s(.*))?$")
# |   1  NVIDIA H200             On  |   00000000:55:00.0 Off |                    2 |
TABLE_FIRST = re.compile(
    r"^\|\s*(?P<index>\d+)\s+(?P<model>\S.*?)\s+(?:On|Off|N/A|ERR!)\s*\|"
    r"\s*(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+)\s+\S+\s*\|"
    r"\s*(?P<ecc>\S+)\s*\|"
)
# | N/A   27C    P8             34W /  600W |       0MiB /  97887MiB |      0%      Default |
TABLE_SECOND = re.compile(
    r"^\|\s*(?P<fan>N/A|\d+%|ERR!)\s+(?P<celsius>\d+C|N/A|ERR!)\s+"
    r"(?P<state>P\d+|N/A|ERR!)\s+(?P<power>\S+)\s*/\s*(?P<limit>\S+)"
    r"\s*\|\s*(?P<used>\S+)\s*/\s*(?P<total>\S+)\s*\|\s*(?P<util>\S+)"
)
# GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-…)      then      Link 3: 25 GB/s   or   Link 3: <inactive>
NVLINK_GPU = re.compile(r"^\s*GPU (\d+): .*\(UUID: ((?:GPU|MIG)-[^)]*|[^)]*)\)")
NVLINK_LINK = re.compile(r"^\s+Link (\d+): (.+?)\s*$")
# nvidia-smi --query-gpu=index,gpu_recovery_action --format=csv,noheader
QUERY_COMMAND = re.compile(r"nvidia-smi\b.*--query-gpu[= ]\"?([a-z_.0-9]+(?:,[a-z_.0-9]+)*)")


def normalise_key(name: str) -> str:
    """The key of a name: `HW Thermal Slowdown` becomes `hw_thermal_slowdown`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def read_query(lines: Sequence[str]) -> list[GpuReading]:
    """Read `nvidia-smi -q`, with sections by indentation; values before the first GPU are ignored."""
    gpus: list[GpuReading] = []
    path: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if (header := QUERY_GPU.match(line)) is not None:
            gpus.append(GpuReading(header[1], number))
            path = []
            continue
        match = QUERY_LINE.match(line)
        if match is None or not gpus:
            continue
        line_indent, name, value = len(match[1]), match[2], match[3]
        path = [(indent, part) for indent, part in path if indent < line_indent]
        if value is None:
            path.append((line_indent, normalise_key(name)))
        elif len(gpus[-1].values) < MAX_VALUES:
            gpus[-1].values["/".join([*(part for _, part in path), normalise_key(name)])] = Value(value.strip(), number)
    for gpu in gpus:
        gpu.index = value.text if (value := gpu.values.get("minor_number")) is not None else None
    return gpus


def read_query_excerpt(lines: Sequence[str]) -> GpuReading | None:
    """Read an excerpt of `-q` without the line that names the GPU: its values belong to one unknown GPU."""
    numbered_lines = [("GPU 00000000:00:00.0", 0)] + [
        (line, line_number) for line_number, line in enumerate(lines, 1) if not line.startswith("|")
    ]
    reading = read_query([line for line, _ in numbered_lines])[0]
    if not any("/" in key for key in reading.values):
        return None
    values = {key: Value(value.text, numbered_lines[value.line - 1][1]) for key, value in reading.values.items()}
    return GpuReading("", 1, None, values)


def read_xml(text: str) -> list[GpuReading]:
    """Read `nvidia-smi -q -x`; entity declarations are refused, because they can expand without limit."""
    reader = _XmlReader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = reader.refuse
    reader.line = lambda: parser.CurrentLineNumber
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        if not reader.gpus:
            raise NotNvidiaSmi(f"invalid XML: {error}") from error
    return reader.gpus


class _XmlReader:
    def __init__(self) -> None:
        self.gpus: list[GpuReading] = []
        self.path: list[str] = []
        self.text_parts: list[str] = []
        self.line: Callable[[], int] = int

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if len(self.path) >= MAX_XML_DEPTH:
            raise NotNvidiaSmi(f"the XML is nested deeper than {MAX_XML_DEPTH} levels")
        if tag == "gpu":
            self.gpus.append(GpuReading(attributes.get("id", ""), self.line()))
            self.path = []
        else:
            self.path.append(normalise_key(tag))
        self.text_parts = []

    def text(self, text: str) -> None:
        self.text_parts.append(text)

    def end(self, tag: str) -> None:
        value = "".join(self.text_parts).strip()
        self.text_parts = []
        if self.gpus and self.path and value and len(self.gpus[-1].values) < MAX_VALUES:
            self.gpus[-1].values.setdefault("/".join(self.path), Value(value, self.line()))
            if self.path == ["minor_number"]:
                self.gpus[-1].index = value
        if self.path and tag != "gpu":
            self.path.pop()

    def refuse(self, *_: object) -> None:
        raise NotNvidiaSmi("the XML declares entities, which nvidia-smi never does")


def read_table(lines: Sequence[str]) -> list[GpuReading]:
    gpus: list[GpuReading] = []
    for number, line in enumerate(lines, 1):
        if (first := TABLE_FIRST.match(line)) is not None:
            gpu = GpuReading(first["pci"], number, first["index"])
            gpu.values["table/volatile_uncorrectable"] = Value(first["ecc"], number)
            gpu.values["table/product_name"] = Value(first["model"], number)
            gpus.append(gpu)
        elif gpus and number == gpus[-1].line + 1 and (second := TABLE_SECOND.match(line)) is not None:
            gpus[-1].values.update({f"table/{name}": Value(text, number) for name, text in second.groupdict().items()})
        elif gpus and number == gpus[-1].line + 1 and "ERR!" in line:
            gpus[-1].values["table/fan"] = Value("ERR!", number)
    return gpus


def read_csv(lines: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Read `--query-gpu=… --format=csv`: line number, and cells by column name, `clocks.sm [MHz]` as `clocks_sm`."""
    # Without a header the column names are read from the pasted command.
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        if (command := QUERY_COMMAND.search(line)) is not None:
            header = [normalise_key(name) for name in command[1].split(",")]
            continue
        cells = next(csv.reader([line], skipinitialspace=True), [])
        names = [normalise_key(cell.split("[")[0]) for cell in cells]
        if (
            len(cells) > 1
            and any("." in cell or cell.strip() in ("index", "uuid", "name", "timestamp") for cell in cells)
            and all(re.fullmatch(r"[a-z_]+(?:\.[a-z_0-9]+)*(?: \[[^\]]+\])?", cell.strip()) for cell in cells)
        ):
            header = names
        elif header and len(cells) == len(header):
            yield number, dict(zip(header, (cell.strip() for cell in cells), strict=True))


def read_nvlinks(lines: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """Read `nvidia-smi nvlink --status` and `-e`: line, GPU index, link, and speed, `<inactive>` or `counter: n`."""
    gpu: str | None = None
    for number, line in enumerate(lines, 1):
        if (header := NVLINK_GPU.match(line)) is not None:
            gpu = header[1]
        elif gpu is not None and (link := NVLINK_LINK.match(line)) is not None:
            yield number, gpu, link[1], link[2]
