"""One open NVML: which GPUs there are, and a reading of one of them.

The reader child (`agent.gpus.reader_child`) opens a session and asks for one GPU at a time. Each question
is announced through `note` before it is put to the driver, so that whoever watches from outside can say
which call hangs. A question that a GPU does not support is not put again in this session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from watchkeeper.errors import CollectError
from watchkeeper.readers.nvml import gpm
from watchkeeper.readers.nvml.calls import CALLS, Answer, Unsupported, field_number
from watchkeeper.readers.nvml.families import ALL_PARTS, Cadence, NvmlFamily
from watchkeeper.readers.nvml.programs import Programs

# INVALID_ARGUMENT is what older drivers say to field ids they do not know.
UNSUPPORTED = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_SUPPORTED",
        "FUNCTION_NOT_FOUND",
        "VGPU_ECC_NOT_SUPPORTED",
        "ARGUMENT_VERSION_MISMATCH",
        "DEPRECATED",
    }
)
# The driver has nothing to say yet, or not in this state; that is no error of the GPU.
SILENT = frozenset({"NO_DATA", "NOT_READY", "INVALID_STATE"})
LOST = "GPU_IS_LOST"
# The `call` of families that many of which are asked for in one nvmlDeviceGetFieldValues.
FIELDS = "field"

Note = Callable[[str], None]
# A number, or one number for each part of an answer.
Value = float | dict[str, float]


class NvmlBroken(CollectError):
    """NVML cannot be used at all; `reason` is the library's own word, such as DRIVER_NOT_LOADED."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


class NvmlQuery(NamedTuple):
    """One thing to put to the driver, and the families that its answer fills; `ask` None: fields in one call."""

    key: str
    nvml: str
    ask: Callable[[Any, Any], Answer] | None
    families: tuple[NvmlFamily, ...]


class MigSlice:
    """One MIG instance of a GPU."""

    def __init__(self, id: int, profile: str, handle: Any) -> None:
        self.id = id
        self.profile = profile
        self.handle = handle
        self.gpm: gpm.Gpm | None = None
        self.unsupported: set[str] = set()
        self.uuid = ""


class SessionGpu:
    """One GPU of this session and what is known about it."""

    def __init__(self, handle: Any, identity: dict[str, str]) -> None:
        self.handle = handle
        self.identity = identity
        self.unsupported: set[str] = set()
        self.gpm: gpm.Gpm | None = None
        self.slices: list[MigSlice] = []
        self.programs = Programs()


class NvmlReading:
    """What one GPU answered; `lost` names the call that found it gone from the bus, `refused` says why it has no name.

    The first GPM sample of a GPU says nothing yet: then `is_profiled` is False.
    """

    def __init__(self, errors: dict[str, str] | None = None) -> None:
        self.identity: dict[str, str] | None = None
        self.values: dict[str, Value] = {}
        self.slices: list[dict[str, Any]] = []
        self.errors: dict[str, str] = {} if errors is None else errors
        self.lost: str | None = None
        self.refused: str | None = None
        self.is_profiled = False
        # None: the GPU does not tell. Each is pid, slice and busy percent, see `programs`.
        self.programs: list[list[int | None]] | None = None

    def plain(self) -> dict[str, Any]:
        """Without what is empty, for the wire."""
        named = {
            name: getattr(self, name)
            for name in ("identity", "values", "slices", "errors", "lost", "refused", "is_profiled")
        }
        told = {name: value for name, value in named.items() if value}
        return told if self.programs is None else {**told, "programs": self.programs}


class GpuLost(Exception):
    """The GPU is off the bus; the message is the call that said so."""


def load() -> Any:
    """The pynvml module, or NvmlBroken if nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlBroken("LIBRARY_NOT_FOUND", "the Python package nvidia-ml-py is not installed") from error
    return pynvml


class Session:
    """Opens NVML at once; NvmlBroken if that fails."""

    def __init__(self, nvml: Any, families: Iterable[NvmlFamily], note: Note) -> None:
        self.nvml = nvml
        self._tell = note
        self._call = ""
        self._words: dict[int, str] = {
            code: name.removeprefix("NVML_ERROR_")
            for name, code in vars(nvml).items()
            if name.startswith("NVML_ERROR_") and isinstance(code, int)
        }
        self._devices: dict[int, SessionGpu] = {}
        wanted = tuple(families)
        self._texts = tuple(family.part for family in wanted if family.call == "text")
        self._gpm = tuple(family for family in wanted if family.call == "gpm")
        self._gpm_metrics = sorted({int(part) for family in self._gpm for part in family.part.split("+")})
        whole = [family for family in wanted if not family.is_per_slice]
        sliced = [family for family in wanted if family.is_per_slice]
        self._plan = {cadence: _questions(whole, cadence) for cadence in Cadence}
        self._slice_plan = {cadence: _questions(sliced, cadence) for cadence in Cadence}
        try:
            self._note("nvmlInit")
            nvml.nvmlInit()
            self.count = int(nvml.nvmlDeviceGetCount())
            self.driver = str(nvml.nvmlSystemGetDriverVersion())
            self.library = str(nvml.nvmlSystemGetNVMLVersion())
        except nvml.NVMLError as error:
            raise NvmlBroken(self.error_name(error), str(error)) from error

    def _note(self, call: str) -> None:
        self._call = call
        self._tell(call)

    def error_name(self, error: Any) -> str:
        """The library's name of an error, such as NOT_SUPPORTED."""
        return self._words.get(int(error.value), f"error {error.value}")

    def gpus(self) -> Mapping[int, SessionGpu]:
        """The GPUs that have been read in this session, by index."""
        return self._devices

    def read(self, index: int, cadences: Collection[Cadence]) -> NvmlReading:
        """One GPU now: every family of these cadences that it supports."""
        reading = NvmlReading()
        try:
            device = self._devices.get(index)
            if device is None:
                device = self._devices[index] = self._identify(index)
                reading.identity = device.identity
            if Cadence.SLOW in cadences or reading.identity is not None:
                self._find_slices(device)
            for cadence in cadences:
                self._put(self._plan[cadence], device.handle, unsupported=device.unsupported, reading=reading)
                if not device.slices:
                    self._put(self._slice_plan[cadence], device.handle, unsupported=device.unsupported, reading=reading)
            if Cadence.PROFILE in cadences and not device.slices:
                self._read_gpm(device, reading)
            for part in device.slices:
                self._read_slice(device, part, cadences=cadences, reading=reading)
            if Cadence.FAST in cadences:
                self._read_programs(device, reading)
        except GpuLost as error:
            reading.lost = str(error)
        except self.nvml.NVMLError as error:
            # Only `_identify` lets these through.
            if self.error_name(error) == LOST:
                reading.lost = self._call
            else:
                reading.refused = f"{self._call} says {self.error_name(error)}"
        return reading

    def _identify(self, index: int) -> SessionGpu:
        nvml = self.nvml
        self._note("nvmlDeviceGetHandleByIndex_v2")
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        self._note("nvmlDeviceGetUUID")
        identity = {
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "pci": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "model": _text(nvml.nvmlDeviceGetName(handle)),
            "minor": str(nvml.nvmlDeviceGetMinorNumber(handle)),
        }
        for text in self._texts:
            try:
                identity[f"text.{text}"] = self._ask_text(text, handle)
            except nvml.NVMLError as error:
                if self.error_name(error) == LOST:
                    raise
        return SessionGpu(handle, identity)

    def _ask_text(self, text: str, handle: Any) -> str:
        nvml = self.nvml
        if text in ("driver", "nvml"):
            return self.driver if text == "driver" else self.library
        if text.startswith("inforom_") and text != "inforom_image":
            objects = {"oem": nvml.NVML_INFOROM_OEM, "ecc": nvml.NVML_INFOROM_ECC, "power": nvml.NVML_INFOROM_POWER}
            return _text(nvml.nvmlDeviceGetInforomVersion(handle, objects[text.removeprefix("inforom_")]))
        calls = {
            "brand": nvml.nvmlDeviceGetBrand,
            "serial": nvml.nvmlDeviceGetSerial,
            "inforom_image": nvml.nvmlDeviceGetInforomImageVersion,
            "vbios": nvml.nvmlDeviceGetVbiosVersion,
        }
        return _text(calls[text](handle))

    def _put(self, plan: Iterable[NvmlQuery], handle: Any, *, unsupported: set[str], reading: NvmlReading) -> None:
        """Put every question of a plan to the driver and sort its answers under their families."""
        for question in plan:
            if question.key in unsupported:
                continue
            self._note(question.nvml)
            try:
                if question.ask is None:
                    self._put_fields(question, handle, unsupported=unsupported, reading=reading)
                else:
                    _fill(reading.values, question.families, question.ask(self.nvml, handle))
            except (Unsupported, AttributeError):
                # AttributeError: an nvidia-ml-py older than this call.
                unsupported.add(question.key)
            except self.nvml.NVMLError as error:
                self._refused(
                    question.key, question.nvml, word=self.error_name(error), unsupported=unsupported, reading=reading
                )

    def _put_fields(self, question: NvmlQuery, handle: Any, *, unsupported: set[str], reading: NvmlReading) -> None:
        """Many fields in one call; each has its own verdict."""
        families = [family for family in question.families if f"{FIELDS}.{family.part}" not in unsupported]
        if not families:
            unsupported.add(question.key)
            return
        found = self.nvml.nvmlDeviceGetFieldValues(handle, [int(family.part) for family in families])
        for family, value in zip(families, found, strict=True):
            if value.nvmlReturn == self.nvml.NVML_SUCCESS:
                _fill(reading.values, (family,), field_number(value))
                continue
            word = self._words.get(value.nvmlReturn, f"error {value.nvmlReturn}")
            self._refused(
                f"{FIELDS}.{family.part}",
                f"{question.nvml}({family.part})",
                word=word,
                unsupported=unsupported,
                reading=reading,
            )

    def _refused(self, key: str, nvml: str, *, word: str, unsupported: set[str], reading: NvmlReading) -> None:
        if word == LOST:
            raise GpuLost(nvml)
        if word in UNSUPPORTED:
            unsupported.add(key)
        elif word not in SILENT:
            reading.errors[nvml] = word

    def _read_gpm(
        self, device: SessionGpu | MigSlice, reading: NvmlReading, *, parent: SessionGpu | None = None
    ) -> None:
        key, nvml = "gpm", "nvmlGpmSampleGet"
        if key in device.unsupported or not self._gpm:
            return
        self._note(nvml)
        try:
            if device.gpm is None:
                handle = device.handle if parent is None else parent.handle
                if not gpm.is_supported(self.nvml, handle):
                    raise Unsupported("no GPM")
                slice_id = device.id if isinstance(device, MigSlice) else None
                device.gpm = gpm.Gpm(self.nvml, handle, self._gpm_metrics, slice_id=slice_id)
            found = device.gpm.read()
            reading.is_profiled = bool(found)
            _fill_gpm(reading.values, self._gpm, found)
        except (Unsupported, AttributeError):
            device.unsupported.add(key)
        except self.nvml.NVMLError as error:
            self._refused(key, nvml, word=self.error_name(error), unsupported=device.unsupported, reading=reading)

    def _read_programs(self, device: SessionGpu, reading: NvmlReading) -> None:
        key = "programs"
        if key not in device.unsupported:
            try:
                reading.programs = device.programs.read(self.nvml, device.handle, self._note)
            except AttributeError:
                device.unsupported.add(key)
            except self.nvml.NVMLError as error:
                word = self.error_name(error)
                self._refused(key, self._call, word=word, unsupported=device.unsupported, reading=reading)

    def _read_slice(
        self, device: SessionGpu, part: MigSlice, *, cadences: Collection[Cadence], reading: NvmlReading
    ) -> None:
        own = NvmlReading(errors=reading.errors)
        for cadence in cadences:
            self._put(self._slice_plan[cadence], part.handle, unsupported=part.unsupported, reading=own)
        if Cadence.PROFILE in cadences:
            self._read_gpm(part, own, parent=device)
        reading.is_profiled |= own.is_profiled
        reading.slices.append({"id": part.id, "profile": part.profile, "values": own.values, "uuid": part.uuid})

    def _find_slices(self, device: SessionGpu) -> None:
        """Look at how the GPU is partitioned now, keeping what is known of a slice that is still there."""
        nvml, key = self.nvml, "slices"
        if key in device.unsupported:
            return
        self._note("nvmlDeviceGetMigMode")
        try:
            is_on = bool(nvml.nvmlDeviceGetMigMode(device.handle)[0])
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle) if is_on else 0
        except nvml.NVMLError as error:
            if self.error_name(error) == LOST:
                raise GpuLost("nvmlDeviceGetMigMode") from error
            device.unsupported.add(key)
            return
        known = {(part.id, part.profile): part for part in device.slices}
        found: dict[int, MigSlice] = {}
        for place in range(most):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, place)
                slice_id = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
                profile = _profile(_text(nvml.nvmlDeviceGetName(handle)))
            except nvml.NVMLError:
                # An empty place in the list.
                continue
            part = known.get((slice_id, profile)) or MigSlice(slice_id, profile, handle)
            part.handle, part.uuid = handle, self._slice_uuid(handle)
            found.setdefault(slice_id, part)
        for part in device.slices:
            if part.gpm is not None and part not in found.values():
                part.gpm.free()
        device.slices = list(found.values())

    def _slice_uuid(self, handle: Any) -> str:
        """The name under which the kubelet knows a slice; a slice may vanish between two calls."""
        try:
            return _text(self.nvml.nvmlDeviceGetUUID(handle))
        except self.nvml.NVMLError:
            return ""


def _questions(families: Iterable[NvmlFamily], cadence: Cadence) -> tuple[NvmlQuery, ...]:
    """What to put to the driver for these families: each call once, fields together."""
    by_call: dict[tuple[str, str], list[NvmlFamily]] = {}
    for family in families:
        if family.cadence is not cadence or family.call in ("gpm", "text", "event"):
            continue
        is_by_part = family.call != FIELDS and CALLS[family.call].by_part is not None
        by_call.setdefault((family.call, family.part if is_by_part else ""), []).append(family)
    return tuple(_question(call, part, tuple(group)) for (call, part), group in by_call.items())


def _question(call: str, part: str, families: tuple[NvmlFamily, ...]) -> NvmlQuery:
    if call == FIELDS:
        return NvmlQuery(f"{FIELDS}@{families[0].cadence}", "nvmlDeviceGetFieldValues", None, families)
    row = CALLS[call]
    if row.by_part is not None:
        ask_part, number = row.by_part, int(part)
        return NvmlQuery(f"{call}.{part}", row.nvml, lambda nvml, gpu: ask_part(nvml, gpu, number), families)
    assert row.ask is not None
    return NvmlQuery(call, row.nvml, row.ask, families)


def _fill(values: dict[str, Value], families: Iterable[NvmlFamily], answer: Answer) -> None:
    for family in families:
        if not isinstance(answer, Mapping):
            values[family.name] = _scaled(family, answer)
        elif family.part == ALL_PARTS:
            values[family.name] = {part: _scaled(family, number) for part, number in answer.items()}
        elif family.part in answer:
            values[family.name] = _scaled(family, answer[family.part])


def _fill_gpm(values: dict[str, Value], families: Iterable[NvmlFamily], found: Mapping[int, float]) -> None:
    for family in families:
        parts = [found.get(int(part)) for part in family.part.split("+")]
        known = [number for number in parts if number is not None]
        if len(known) == len(parts):
            values[family.name] = _scaled(family, sum(known))


def _scaled(family: NvmlFamily, number: float) -> float:
    # DCGM cuts whole numbers off: 644939776 bytes are 615 MiB.
    return (
        number * family.scale if family.is_float else int(number * family.scale) if family.scale != 1 else int(number)
    )


def _profile(name: str) -> str:
    """`NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb` → `3g.40gb`, the profile of the GPU instance."""
    profile = name.rpartition("MIG ")[2]
    head, dot, rest = profile.partition(".")
    return rest if dot and head.endswith("c") else profile


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
