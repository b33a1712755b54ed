"""Declare endpoints, write JSON responses and errors, and read request bodies.

`get`, `post` and `delete` declare methods as endpoints, and `app` makes the table of routes from them. Errors under
/api/v1 have the format of Prometheus; all others have the format of `error_response`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse

from watchkeeper.errors import WireError
from watchkeeper.kit import wire
from watchkeeper.net import compression
from watchkeeper.web.auth.auth import Caller, Role

T = TypeVar("T")


class DataclassInstance(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


RequestHandler = Callable[[Request], Awaitable[Response]]
# A dataclass or a TypedDict is written as its fields, beside `ok`.
EndpointHandler = Callable[[Request], Awaitable[Response | DataclassInstance | Mapping[str, object]]]
Method = TypeVar("Method", bound=Callable[..., Awaitable[Response | DataclassInstance | Mapping[str, object]]])
POST = ("POST",)
PROMETHEUS_PREFIX = "/api/v1/"
# `wire` writes times and dataclasses, not orjson.
JSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# A body of 1 MiB takes one second on a slow connection.
BODY_TIMEOUT_SECONDS = 10.0
# Only these are compressed: images and archives are compressed already.
COMPRESSIBLE_TYPES = ("application/json", "text/", "application/vnd.google.protobuf")
# Compressing this takes 0.3 ms; larger bodies are compressed in a thread.
MAX_INLINE_BYTES = 64 * 1024
# Prometheus' `errorType` for each status.
ERROR_TYPES = {
    400: "bad_data",
    404: "not_found",
    406: "not_acceptable",
    413: "bad_data",
    422: "execution",
    503: "unavailable",
}


# The type of a body or a response: a type, the fields of an object by name, or None if undeclared.
TypeSpec = Any


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The type of a JSON response that is written without `ok`."""

    kind: Any


@dataclass(frozen=True, slots=True)
class QueryParam:
    """A query parameter of an endpoint, for `openapi`; `kind` is a type that `schema` supports."""

    name: str
    description: str
    kind: Any = str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the route table; `role` None needs no login, `changes` enables the same-origin check.

    The other fields are for `openapi`: a summary, parameters, the type of the body, and the media type of a response
    that is not JSON. `response` is the type of the response, if the signature of `handler` does not declare it.
    """

    path: str
    handler: EndpointHandler
    summary: str = ""
    role: Role | None = Role.VIEWER
    methods: tuple[str, ...] = ("GET",)
    changes: bool = False
    params: tuple[QueryParam, ...] = ()
    body: TypeSpec = None
    response: TypeSpec = None
    media_type: str = "application/json"

    @property
    def response_type(self) -> TypeSpec:
        """The type of the response: `response`, or the dataclass or TypedDict that `handler` is declared to return."""
        if self.response is not None:
            return self.response
        declared = inspect.get_annotations(self.handler, eval_str=True).get("return")
        return declared if dataclasses.is_dataclass(declared) or typing.is_typeddict(declared) else None

    async def respond(self, request: Request) -> Response:
        """Handle a request; a dataclass or mapping is written as JSON, its fields beside `ok`."""
        answer = await self.handler(request)
        if isinstance(answer, Response):
            return answer
        return ok_response(**(answer if isinstance(answer, Mapping) else wire.fields_of(answer)))


def get(path: str, *params: QueryParam, **fields: Any) -> Callable[[Method], Method]:
    """Declare a method as an endpoint, whose summary is the first paragraph of its docstring, or the field `summary`.

    The other fields are those of `Endpoint`.
    """

    def declare(method: Method) -> Method:
        paragraph = (inspect.getdoc(method) or "").partition("\n\n")[0]
        row = Endpoint(path, method, params=params, **{"summary": " ".join(paragraph.split()).rstrip("."), **fields})
        # Decorators are applied from the last to the first.
        vars(method).setdefault("endpoints", []).insert(0, row)
        return method

    return declare


def post(path: str, **fields: Any) -> Callable[[Method], Method]:
    """Declare an endpoint that changes state with POST; it needs the role operator."""
    return get(path, **{"role": Role.OPERATOR, "methods": POST, "changes": True, **fields})


def delete(path: str, **fields: Any) -> Callable[[Method], Method]:
    return post(path, methods=("DELETE",), **fields)


def endpoints_of(*apis: object) -> list[Endpoint]:
    """The endpoints that the methods of these objects declare."""
    return [
        dataclasses.replace(row, handler=getattr(api, name))
        for api in apis
        for name, method in vars(type(api)).items()
        if inspect.isfunction(method)
        for row in vars(method).get("endpoints", ())
    ]


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(content, default=wire.to_plain, option=JSON_OPTIONS)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def ok_response(**content: Any) -> Response:
    return json_response({"ok": True, **content})


async def compress_response(response: Response, accepted: str) -> Response:
    """Compress a long text response if the client accepts gzip; streams are not compressed."""
    if isinstance(response, StreamingResponse | FileResponse):
        return response
    body = bytes(response.body)
    is_text = response.headers.get("content-type", "").startswith(COMPRESSIBLE_TYPES)
    if len(body) < compression.MIN_BYTES or not is_text or "content-encoding" in response.headers:
        return response
    response.headers["Vary"] = "Accept-Encoding"
    if compression.accepts_gzip(accepted):
        is_long = len(body) > MAX_INLINE_BYTES
        response.body = await asyncio.to_thread(compression.gzip_body, body) if is_long else compression.gzip_body(body)
        response.headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(response.body))})
    return response


def error_response(path: str, *, status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the format of the path: Prometheus' format under /api/v1, else `{"ok": false, "error": …}`."""
    if path.startswith(PROMETHEUS_PREFIX):
        return prometheus_error(problem, status=status, headers=headers)
    return json_response({"ok": False, "error": problem, "status": status}, status=status, headers=headers)


def prometheus_error(
    problem: str, *, status: int, kind: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    content = {"status": "error", "errorType": kind or ERROR_TYPES.get(status, "internal"), "error": problem}
    return json_response(content, status=status, headers=headers)


def parse_whole_number(text: str, *, max_digits: int = 12) -> int | None:
    """A number in ASCII digits, or None; `isdigit` alone accepts ² and thousands of digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits else None


def read_number(request: Request, name: str, *, default: int, limit: int, least: int = 1) -> int:
    """Read a query parameter as a whole number from `least` to `limit`, or raise 400."""
    text = request.query_params.get(name, str(default))
    number = parse_whole_number(text)
    if number is None or not least <= number <= limit:
        raise HTTPException(400, f"{name} `{text[:20]}` is not a whole number from {least} to {limit}")
    return number


def check_choice(name: str, text: object, choices: Iterable[str]) -> str:
    """The text if it is one of these words, or raise 400."""
    words = list(choices)
    if text not in words:
        raise HTTPException(400, f"`{name}` is `{str(text)[:40]}`; expected {', '.join(words)}")
    return str(text)


def check_node(caller: Caller, *nodes: str | None) -> None:
    """Raise 403 unless the caller's token allows all these nodes; None means data that belongs to no node."""
    for node in nodes:
        if not caller.may_report_for(node):
            subject = "no single node" if node is None else node[:100]
            problem = f"token {caller.name} is only valid for nodes {caller.nodes}; this request is for {subject}"
            raise HTTPException(403, problem)


async def read_body(request: Request, limit_bytes: int, *, remedy: str = "Send it in parts") -> bytes:
    """Read the body; raise 413 as soon as it exceeds the limit, 408 if it does not arrive in time."""
    declared = request.headers.get("content-length", "")
    size = parse_whole_number(declared) or 0
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            if size <= limit_bytes:
                async for chunk in request.stream():
                    body += chunk
                    size = max(size, len(body))
                    if size > limit_bytes:
                        break
    except TimeoutError as error:
        raise HTTPException(408, f"the body did not arrive within {BODY_TIMEOUT_SECONDS:g} s") from error
    except ClientDisconnect as error:
        # For example an agent that was killed: no one reads this response, and the hub did not fail.
        raise HTTPException(400, "the client disconnected before the whole body arrived") from error
    if size > limit_bytes:
        raise HTTPException(413, f"the body has {size:,} bytes or more, the limit is {limit_bytes:,}. {remedy}")
    return bytes(body)


async def read_json_object(request: Request, limit_bytes: int) -> dict[str, Any]:
    """Read the body as a JSON object, empty if there is no body; raise 400 if it is something else."""
    try:
        body = orjson.loads(await read_body(request, limit_bytes) or b"{}")
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body


async def read_record(request: Request, kind: type[T], limit_bytes: int) -> T:
    """Read the body as a dataclass, or raise 400 with all problems."""
    try:
        return wire.loads(kind, await read_body(request, limit_bytes))
    except WireError as error:
        raise HTTPException(400, str(error)) from error
