"""GET /api/openapi.json: the OpenAPI document, generated from the table of endpoints and the types of their answers.

docs/reference/api.md is generated from the same document, and tests compare the responses of a running hub with it.
`x-watchkeeper-role` is the role that a caller needs, `x-watchkeeper-changes` whether the call changes state. A schema
describes the JSON that `wire.to_plain` writes for a value of a type; each dataclass, enum or TypedDict becomes one
component, named `module.Class`.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.kit import api_version, wire
from watchkeeper.web.auth.auth import COOKIE
from watchkeeper.web.endpoint import PROMETHEUS_PREFIX, Endpoint, Unwrapped, json_response

PREFIX = "#/components/schemas/"
SIMPLE_TYPES: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    object: {},
    Any: {},
    dict: {"type": "object"},
    list: {"type": "array"},
}
PATH = "/api/openapi.json"
OPEN = "open"
# A parameter may have a converter: `{id:path}` may contain slashes.
PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
TAGS = {
    "fleet": ("fleet", "gpu", "nodes", "node", "who", "topology", "fabric", "explain", "events"),
    "incidents": ("incidents", "silences", "digest", "alertmanager", "accuracy", "lemons", "bundle"),
    "repairs": ("repairs", "orders"),
    "jobs": ("jobs", "replicas"),
    "use": ("usage", "cost", "capacity"),
    "rules": ("slos", "rules"),
    "explore": ("explore", "history", "recording"),
    "drills": ("drills", "sim", "learn"),
    "hub": ("status", "whoami", "login", "logout", "live", "openapi", "journal", "users"),
}
PATH_DESCRIPTIONS = {
    "id": "id, as in the list response",
    "uuid": "UUID of the GPU",
    "namespace": "Kubernetes namespace",
    "name": "name of the object",
}
DESCRIPTION = (
    "The hub's own HTTP API. Within a version, changes only add paths, parameters, fields and enum values. A change "
    "that breaks clients gets the next version number and an entry in the changelog, and the hub serves both versions "
    f"for one release. The header {api_version.HEADER} of each response contains the version. Every response has `ok`; "
    "if it is false, `error` says why. Under /api/v1 and /federate, the API is the API of Prometheus."
)
OK_PROPERTIES = {"ok": {"const": True}}
ERROR = {
    "type": "object",
    "properties": {
        "ok": {"const": False},
        "error": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "string"}},
        "status": {"type": "integer"},
    },
    "required": ["ok", "error", "status"],
}
PROMETHEUS_ERROR = {
    "type": "object",
    "properties": {"status": {"const": "error"}, "errorType": {"type": "string"}, "error": {"type": "string"}},
    "required": ["status", "errorType", "error"],
}
PROMETHEUS_ANSWER = {
    "type": "object",
    "properties": {
        "status": {"const": "success"},
        "data": {},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "infos": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["status", "data"],
}


@dataclass(frozen=True, slots=True)
class ResponseVariant:
    """A variant of a dataclass in a response: its component name, added fields and omitted fields."""

    name: str
    added: Mapping[str, Any] = field(default_factory=dict)
    omitted: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)


class Schemas:
    """Schemas by type; `components` has every named schema that was used so far."""

    def __init__(self) -> None:
        self.components: dict[str, dict[str, Any]] = {}
        self._owners: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type, or of an object, given as a mapping of field names to types."""
        kind = getattr(kind, "__supertype__", kind)
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if isinstance(kind, Mapping):
            return self._object(kind)
        if kind in SIMPLE_TYPES:
            return dict(SIMPLE_TYPES[kind])
        if origin in (typing.Required, typing.NotRequired):
            return self.of(args[0])
        if origin is Annotated:
            return self._variant(args[0], args[1])
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(arg) for arg in args]}
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin in (list, frozenset, set, Sequence) or (origin is tuple and args[-1] is Ellipsis):
            return {"type": "array", "items": self.of(args[0])}
        if origin is tuple:
            return {"type": "array", "prefixItems": [self.of(arg) for arg in args], "minItems": len(args)}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        return self._class(kind)

    def _class(self, kind: Any) -> dict[str, Any]:
        if not isinstance(kind, type):
            raise TypeError(f"{kind!r} has no JSON schema; use a type, a mapping of types, or Annotated")
        if issubclass(kind, Enum):
            return self._component(kind, lambda: {"enum": [member.value for member in kind]})
        if dataclasses.is_dataclass(kind):
            return self._component(kind, lambda: self._object(_fields(kind)))
        if typing.is_typeddict(kind):
            required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]  # TypedDicts have it
            hints = typing.get_type_hints(kind, include_extras=True)
            return self._component(kind, lambda: self._object(hints, required))
        if issubclass(kind, Mapping):
            # Our only mapping class is Labels.
            return {"type": "object", "additionalProperties": {"type": "string"}}
        raise TypeError(f"{kind.__name__} has no JSON schema: it is not a dataclass, an enum or a TypedDict")

    def _object(self, fields: Mapping[str, Any], required: frozenset[str] | None = None) -> dict[str, Any]:
        """The schema of an object; without `required` all fields are required, because `wire` writes None too."""
        required_names = [name for name in fields if required is None or name in required]
        properties = {name: self.of(kind) for name, kind in fields.items()}
        return {"type": "object", "properties": properties} | ({"required": required_names} if required_names else {})

    def _variant(self, kind: Any, variant: ResponseVariant) -> dict[str, Any]:
        fields = {name: kind for name, kind in _fields(kind).items() if name not in variant.omitted}
        return self._register(variant.name, variant, lambda: self._object({**fields, **variant.added}), kind.__doc__)

    def _component(self, kind: Any, build: typing.Callable[[], dict[str, Any]]) -> dict[str, Any]:
        name = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
        # A TypedDict or enum without a docstring has its parent's.
        docstring = None if typing.is_typeddict(kind) or issubclass(kind, Enum) else kind.__doc__
        return self._register(name, kind, build, docstring)

    def _register(
        self, name: str, owner: Any, build: typing.Callable[[], dict[str, Any]], docstring: str | None
    ) -> dict[str, Any]:
        if name not in self._owners:
            self._owners[name] = owner
            self.components[name] = {}
            # Registered before its fields, because a type may contain itself.
            self.components[name] = build()
            # Python makes a docstring for a dataclass without one.
            if docstring and not docstring.startswith(f"{getattr(owner, '__name__', '')}("):
                self.components[name]["description"] = " ".join(docstring.split())
        elif self._owners[name] is not owner:
            raise TypeError(f"two types have the component name {name}. Rename one")
        return {"$ref": PREFIX + name}


def _fields(kind: Any) -> dict[str, Any]:
    """The types of the JSON fields of a dataclass, with their annotations."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {key: hints[name] for key, name in wire.field_names(kind).items()}


def build_document(table: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The API in OpenAPI 3.1; `version` is the version of the hub, `info.version` that of the API."""
    schemas = Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for row in table:
        for method in row.methods:
            paths.setdefault(plain_path(row.path), {})[method.lower()] = _operation(row, method, schemas)
    fixed_schemas = {"Error": ERROR, "PrometheusError": PROMETHEUS_ERROR, "PrometheusAnswer": PROMETHEUS_ANSWER}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Watchkeeper",
            "version": str(api_version.API_VERSION),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "x-watchkeeper-version": version,
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**fixed_schemas, **dict(sorted(schemas.components.items()))},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def endpoints(table: Callable[[], Sequence[Endpoint]], *, version: str) -> list[Endpoint]:
    """The endpoint of the document, which is built at the first request: most hubs never get one."""
    cached: list[Response] = []

    async def answer(_: Request) -> Response:
        if not cached:
            cached.append(json_response(build_document(table(), version=version)))
        # Deliberately a new response: one can be sent only once, but the body can be shared.
        return Response(cached[0].body, media_type="application/json")

    summary = "The OpenAPI document: every endpoint with its role, parameters, and body and response types"
    return [Endpoint(PATH, answer, summary, response=Unwrapped(dict[str, Any]))]


def _operation(row: Endpoint, method: str, schemas: Schemas) -> dict[str, Any]:
    is_prometheus = row.path.startswith(PROMETHEUS_PREFIX) or row.path == "/federate"
    error = "PrometheusError" if is_prometheus else "Error"
    schema = _response_schema(row, is_prometheus, schemas=schemas)
    operation: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *re.findall(r"\w+", plain_path(row.path))]),
        "summary": row.summary,
        "tags": [tag(row)],
        "x-watchkeeper-role": OPEN if row.role is None else row.role.value,
        "x-watchkeeper-changes": row.changes,
        "parameters": list(_parameters(row, schemas)),
        "responses": {
            "200": {"description": "success", "content": {row.media_type: {"schema": schema}}},
            "default": {
                "description": "an error with its reason",
                "content": {"application/json": {"schema": {"$ref": PREFIX + error}}},
            },
        },
    }
    operation["security"] = [] if row.role is None else [{"token": []}, {"session": []}]
    body = _body(row, method, schemas)
    return operation | ({"requestBody": body} if body else {})


def plain_path(path: str) -> str:
    """A path in the format of OpenAPI: parameters without converters."""
    return PATH_PARAMETER.sub(r"{\1}", path)


def tag(row: Endpoint) -> str:
    """The tag of an endpoint, from the first part of its path after /api."""
    if row.path.startswith(PROMETHEUS_PREFIX) or row.path == "/federate":
        return "prometheus"
    parts = [part for part in row.path.split("/") if part]
    if parts[:1] == ["api"]:
        word = parts[1].partition(".")[0]
        return next((name for name, words in TAGS.items() if word in words), word)
    return "hub" if parts and parts[0] in ("-", "metrics") else "console"


def _parameters(row: Endpoint, schemas: Schemas) -> Iterator[dict[str, Any]]:
    for name in PATH_PARAMETER.findall(row.path):
        description = PATH_DESCRIPTIONS.get(name, name)
        yield {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}
    for param in row.params:
        place = {"name": param.name, "in": "query", "required": param.is_required}
        yield {**place, "description": param.description, "schema": schemas.of(param.kind)}


def _response_schema(row: Endpoint, is_prometheus: bool, *, schemas: Schemas) -> dict[str, Any]:
    response_type = row.response_type
    if row.media_type != "application/json" and response_type is None:
        return {"type": "string"}
    if is_prometheus:
        answer = {"$ref": PREFIX + "PrometheusAnswer"}
        return answer if response_type is None else {"allOf": [answer, _object({"data": schemas.of(response_type)})]}
    if isinstance(response_type, Unwrapped):
        return schemas.of(response_type.kind)
    envelope = _object(OK_PROPERTIES)
    if response_type is None:
        return envelope
    schema = schemas.of(response_type)
    if "$ref" in schema:
        return {"allOf": [envelope, schema]}
    required = ["ok", *schema.get("required", ())]
    return {"type": "object", "properties": {**OK_PROPERTIES, **schema["properties"]}, "required": required}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _body(row: Endpoint, method: str, schemas: Schemas) -> dict[str, Any] | None:
    if row.body is not None:
        return {"required": True, "content": {"application/json": {"schema": schemas.of(row.body)}}}
    if method == "POST" and "GET" in row.methods:
        # The parameters as a form, for queries that are longer than the limit of a URL.
        fields = {param.name: schemas.of(param.kind) for param in row.params}
        form = {"type": "object", "properties": fields}
        return {"content": {"application/x-www-form-urlencoded": {"schema": form}}}
    return None
