"""An NVML session: counts the GPUs and reads one GPU at a time.

Before each call the session passes its name to `note`, so that the agent can report which call hangs. A call that a GPU
does not support is not repeated in this session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any, NamedTuple

from watchkeeper.errors import CollectError
from watchkeeper.readers.nvml import gpm
from watchkeeper.readers.nvml.calls import CALLS, Answer, Unsupported, field_number
from watchkeeper.readers.nvml.families import ALL_PARTS, Cadence, NvmlFamily
from watchkeeper.readers.nvml.programs import Programs

# Older drivers return INVALID_ARGUMENT for field ids that they do not know.
UNSUPPORTED: Set[str] = {
    *("INVALID_ARGUMENT", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "VGPU_ECC_NOT_SUPPORTED"),
    *("ARGUMENT_VERSION_MISMATCH", "DEPRECATED"),
}
# The driver has no value yet, or not in this state; this is not an error of the GPU.
NO_ANSWER = frozenset({"NO_DATA", "NOT_READY", "INVALID_STATE"})
LOST = "GPU_IS_LOST"
TEXTS = {"brand": "Brand", "serial": "Serial", "inforom_image": "InforomImageVersion", "vbios": "VbiosVersion"}
# The `call` of families that are read together with one nvmlDeviceGetFieldValues.
FIELDS = "field"

CallNote = Callable[[str], None]
# A number, or one number for each part of an answer.
Value = float | dict[str, float]


class NvmlBroken(CollectError):
    """NVML cannot be used; `reason` is its error name, such as DRIVER_NOT_LOADED."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason


class NvmlQuery(NamedTuple):
    """One driver call and the families that it fills; `read` is None for fields that are read in one call."""

    key: str
    function: str
    read: Callable[[Any, Any], Answer] | None
    families: tuple[NvmlFamily, ...]


class NvmlDevice:
    """A GPU or MIG instance of this session, with the keys of its unsupported calls."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.gpm: gpm.Gpm | None = None
        self.unsupported: set[str] = set()


class MigSlice(NvmlDevice):
    def __init__(self, id: int, profile: str, handle: Any) -> None:
        super().__init__(handle)
        self.id = id
        self.profile = profile
        self.uuid = ""


class SessionGpu(NvmlDevice):
    def __init__(self, handle: Any, identity: dict[str, str]) -> None:
        super().__init__(handle)
        self.identity = identity
        self.slices: list[MigSlice] = []
        self.programs = Programs()


class NvmlReading:
    """The values of one GPU; `lost` names the call that failed because the GPU is off the bus."""

    def __init__(self, errors: dict[str, str] | None = None) -> None:
        self.identity: dict[str, str] | None = None
        self.values: dict[str, Value] = {}
        self.slices: list[dict[str, Any]] = []
        self.errors: dict[str, str] = {} if errors is None else errors
        self.lost: str | None = None
        # The error if the GPU could not be identified.
        self.refused: str | None = None
        # False until the second GPM sample.
        self.is_profiled = False
        # Rows of pid, MIG instance and utilisation percent, see `programs`; None if the GPU does not report them.
        self.programs: list[list[int | None]] | None = None

    def plain(self) -> dict[str, Any]:
        """The values that are not empty, for the message to the agent."""
        return {
            name: value for name, value in vars(self).items() if value or (name == "programs" and value is not None)
        }


class GpuLost(Exception):
    """The GPU is off the bus; the message is the call that failed."""


def load() -> Any:
    """The pynvml module, or NvmlBroken if nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlBroken("LIBRARY_NOT_FOUND", "the Python package nvidia-ml-py is not installed") from error
    return pynvml


class Session:
    """Opens NVML when it is created; NvmlBroken if that fails."""

    def __init__(self, nvml: Any, families: Iterable[NvmlFamily], note: CallNote) -> None:
        self.nvml = nvml
        self._note_call = note
        self._call = ""
        self._error_names: dict[int, str] = {
            code: name.removeprefix("NVML_ERROR_")
            for name, code in vars(nvml).items()
            if name.startswith("NVML_ERROR_") and isinstance(code, int)
        }
        self._devices: dict[int, SessionGpu] = {}
        all_families = tuple(families)
        self._texts = tuple(family.part for family in all_families if family.call == "text")
        self._gpm = tuple(family for family in all_families if family.call == "gpm")
        self._gpm_metrics = sorted({int(part) for family in self._gpm for part in family.part.split("+")})
        gpu_families = [family for family in all_families if not family.is_per_slice]
        slice_families = [family for family in all_families if family.is_per_slice]
        self._plan = {cadence: _build_queries(gpu_families, cadence) for cadence in Cadence}
        self._slice_plan = {cadence: _build_queries(slice_families, cadence) for cadence in Cadence}
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
        self._note_call(call)

    def error_name(self, error: Any) -> str:
        """NVML's name of an error, such as NOT_SUPPORTED."""
        return self._error_names.get(int(error.value), f"error {error.value}")

    def gpus(self) -> Mapping[int, SessionGpu]:
        return self._devices

    def read(self, index: int, cadences: Collection[Cadence]) -> NvmlReading:
        reading = NvmlReading()
        try:
            device = self._devices.get(index)
            if device is None:
                device = self._devices[index] = self._identify(index)
                reading.identity = device.identity
            if Cadence.SLOW in cadences or reading.identity is not None:
                self._find_slices(device)
            for cadence in cadences:
                self._run_queries(self._plan[cadence], device, reading=reading)
                if not device.slices:
                    self._run_queries(self._slice_plan[cadence], device, reading=reading)
            if Cadence.PROFILE in cadences and not device.slices:
                self._read_gpm(device, reading)
            for mig_slice in device.slices:
                self._read_slice(device, mig_slice, cadences=cadences, reading=reading)
            if Cadence.FAST in cadences:
                self._read_programs(device, reading)
        except GpuLost as error:
            reading.lost = str(error)
        except self.nvml.NVMLError as error:
            # Only `_identify` raises these errors.
            if self.error_name(error) == LOST:
                reading.lost = self._call
            else:
                reading.refused = f"{self._call} failed: {self.error_name(error)}"
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
        for text_name in self._texts:
            try:
                identity[f"text.{text_name}"] = self._read_text(text_name, handle)
            except nvml.NVMLError as error:
                if self.error_name(error) == LOST:
                    raise
        return SessionGpu(handle, identity)

    def _read_text(self, text_name: str, handle: Any) -> str:
        nvml = self.nvml
        if text_name in ("driver", "nvml"):
            return self.driver if text_name == "driver" else self.library
        if text_name.startswith("inforom_") and text_name != "inforom_image":
            objects = {"oem": nvml.NVML_INFOROM_OEM, "ecc": nvml.NVML_INFOROM_ECC, "power": nvml.NVML_INFOROM_POWER}
            return _text(nvml.nvmlDeviceGetInforomVersion(handle, objects[text_name.removeprefix("inforom_")]))
        return _text(getattr(nvml, f"nvmlDeviceGet{TEXTS[text_name]}")(handle))

    def _run_queries(self, plan: Iterable[NvmlQuery], device: NvmlDevice, *, reading: NvmlReading) -> None:
        """Make every call of a plan and store its values under their families."""
        for query in plan:
            if query.key in device.unsupported:
                continue
            self._note(query.function)
            try:
                if query.read is None:
                    self._read_fields(query, device, reading=reading)
                else:
                    _fill_values(reading.values, query.families, query.read(self.nvml, device.handle))
            except (Unsupported, AttributeError):
                # AttributeError: this version of nvidia-ml-py does not have the call.
                device.unsupported.add(query.key)
            except self.nvml.NVMLError as error:
                _record_error(query.key, query.function, self.error_name(error), device=device, reading=reading)

    def _read_fields(self, query: NvmlQuery, device: NvmlDevice, *, reading: NvmlReading) -> None:
        """Read many fields in one call; each has its own return code."""
        families = [family for family in query.families if f"{FIELDS}.{family.part}" not in device.unsupported]
        if not families:
            device.unsupported.add(query.key)
            return
        values = self.nvml.nvmlDeviceGetFieldValues(device.handle, [int(family.part) for family in families])
        for family, value in zip(families, values, strict=True):
            if value.nvmlReturn == self.nvml.NVML_SUCCESS:
                _fill_values(reading.values, (family,), field_number(value))
                continue
            error_name = self._error_names.get(value.nvmlReturn, f"error {value.nvmlReturn}")
            key, call = f"{FIELDS}.{family.part}", f"{query.function}({family.part})"
            _record_error(key, call, error_name, device=device, reading=reading)

    def _read_gpm(self, device: NvmlDevice, reading: NvmlReading, *, parent: SessionGpu | None = None) -> None:
        key, call = "gpm", "nvmlGpmSampleGet"
        if key in device.unsupported or not self._gpm:
            return
        self._note(call)
        try:
            if device.gpm is None:
                handle = device.handle if parent is None else parent.handle
                if not gpm.is_supported(self.nvml, handle):
                    raise Unsupported("no GPM")
                slice_id = device.id if isinstance(device, MigSlice) else None
                device.gpm = gpm.Gpm(self.nvml, handle, self._gpm_metrics, slice_id=slice_id)
            metrics = device.gpm.read()
            reading.is_profiled = bool(metrics)
            for family in self._gpm:
                numbers = [metrics[int(part)] for part in family.part.split("+") if int(part) in metrics]
                if len(numbers) == len(family.part.split("+")):
                    reading.values[family.name] = _scale(family, sum(numbers))
        except (Unsupported, AttributeError):
            device.unsupported.add(key)
        except self.nvml.NVMLError as error:
            _record_error(key, call, self.error_name(error), device=device, reading=reading)

    def _read_programs(self, device: SessionGpu, reading: NvmlReading) -> None:
        key = "programs"
        if key not in device.unsupported:
            try:
                reading.programs = device.programs.read(self.nvml, device.handle, self._note)
            except AttributeError:
                device.unsupported.add(key)
            except self.nvml.NVMLError as error:
                _record_error(key, self._call, self.error_name(error), device=device, reading=reading)

    def _read_slice(
        self, device: SessionGpu, mig_slice: MigSlice, *, cadences: Collection[Cadence], reading: NvmlReading
    ) -> None:
        slice_reading = NvmlReading(errors=reading.errors)
        for cadence in cadences:
            self._run_queries(self._slice_plan[cadence], mig_slice, reading=slice_reading)
        if Cadence.PROFILE in cadences:
            self._read_gpm(mig_slice, slice_reading, parent=device)
        reading.is_profiled |= slice_reading.is_profiled
        reading.slices.append(
            {"id": mig_slice.id, "profile": mig_slice.profile, "values": slice_reading.values, "uuid": mig_slice.uuid}
        )

    def _find_slices(self, device: SessionGpu) -> None:
        """Update the MIG instances of the GPU, and keep the state of instances that still exist."""
        nvml, key = self.nvml, "slices"
        if key in device.unsupported:
            return
        self._note("nvmlDeviceGetMigMode")
        try:
            is_on = bool(nvml.nvmlDeviceGetMigMode(device.handle)[0])
            max_slices = nvml.nvmlDeviceGetMaxMigDeviceCount(device.handle) if is_on else 0
        except nvml.NVMLError as error:
            if self.error_name(error) == LOST:
                raise GpuLost("nvmlDeviceGetMigMode") from error
            device.unsupported.add(key)
            return
        previous_slices = {(mig_slice.id, mig_slice.profile): mig_slice for mig_slice in device.slices}
        slices: dict[int, MigSlice] = {}
        for slice_index in range(max_slices):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, slice_index)
                slice_id = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
                profile = _profile(_text(nvml.nvmlDeviceGetName(handle)))
            except nvml.NVMLError:
                # An unused index.
                continue
            part = previous_slices.get((slice_id, profile)) or MigSlice(slice_id, profile, handle)
            part.handle, part.uuid = handle, self._slice_uuid(handle)
            slices.setdefault(slice_id, part)
        for part in device.slices:
            if part.gpm is not None and part not in slices.values():
                part.gpm.free()
        device.slices = list(slices.values())

    def _slice_uuid(self, handle: Any) -> str:
        """The UUID of a MIG instance, which the kubelet uses; empty if the instance vanished between two calls."""
        try:
            return _text(self.nvml.nvmlDeviceGetUUID(handle))
        except self.nvml.NVMLError:
            return ""


def _record_error(key: str, call: str, error_name: str, *, device: NvmlDevice, reading: NvmlReading) -> None:
    if error_name == LOST:
        raise GpuLost(call)
    if error_name in UNSUPPORTED:
        device.unsupported.add(key)
    elif error_name not in NO_ANSWER:
        reading.errors[call] = error_name


def _build_queries(families: Iterable[NvmlFamily], cadence: Cadence) -> tuple[NvmlQuery, ...]:
    """The calls for these families: each call once, and all fields in one call."""
    by_call: dict[tuple[str, str], list[NvmlFamily]] = {}
    for family in families:
        if family.cadence is not cadence or family.call in ("gpm", "text", "event"):
            continue
        is_by_part = family.call != FIELDS and CALLS[family.call].read_part is not None
        by_call.setdefault((family.call, family.part if is_by_part else ""), []).append(family)
    return tuple(_build_query(call, part, tuple(group)) for (call, part), group in by_call.items())


def _build_query(call: str, part: str, families: tuple[NvmlFamily, ...]) -> NvmlQuery:
    if call == FIELDS:
        return NvmlQuery(f"{FIELDS}@{families[0].cadence}", "nvmlDeviceGetFieldValues", None, families)
    nvml_call = CALLS[call]
    if nvml_call.read_part is not None:
        read_part, number = nvml_call.read_part, int(part)
        return NvmlQuery(f"{call}.{part}", nvml_call.function, lambda nvml, gpu: read_part(nvml, gpu, number), families)
    assert nvml_call.read is not None
    return NvmlQuery(call, nvml_call.function, nvml_call.read, families)


def _fill_values(values: dict[str, Value], families: Iterable[NvmlFamily], answer: Answer) -> None:
    for family in families:
        if not isinstance(answer, Mapping):
            values[family.name] = _scale(family, answer)
        elif family.part == ALL_PARTS:
            values[family.name] = {part: _scale(family, number) for part, number in answer.items()}
        elif family.part in answer:
            values[family.name] = _scale(family, answer[family.part])


def _scale(family: NvmlFamily, number: float) -> float:
    if family.is_float:
        return number * family.scale
    # DCGM truncates to whole numbers: 644939776 bytes are 615 MiB.
    return int(number * family.scale) if family.scale != 1 else int(number)


def _profile(name: str) -> str:
    """`NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb` → `3g.40gb`, the profile of the GPU instance."""
    profile = name.rpartition("MIG ")[2]
    head, dot, rest = profile.partition(".")
    return rest if dot and head.endswith("c") else profile


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
