"""How every endpoint answers: one JSON writer, one error envelope, one place that declares a route.

An `Endpoint` is a row of the table that `app.py` turns into routes: its path, who may call it, and
whether it changes something. Under /api/v1 errors have Prometheus' own shape, everywhere else ours.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from watchkeeper.kit import wire
from watchkeeper.net import compression
from watchkeeper.web.auth.auth import Caller, Role


class DataclassInstance(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


RequestHandler = Callable[[Request], Awaitable[Response]]
# What answers with a dataclass or a TypedDict is written as its fields, in our envelope.
EndpointHandler = Callable[[Request], Awaitable[Response | DataclassInstance | Mapping[str, object]]]
PROMETHEUS_PREFIX = "/api/v1/"
# orjson has its own way with times and dataclasses; `wire` is the one way here.
JSON_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
# A body of a mebibyte takes a second on a poor line; one that takes longer is not coming.
BODY_TIMEOUT_SECONDS = 10.0
# What is worth packing: pictures and archives are small already.
COMPRESSIBLE_TYPES = ("application/json", "text/", "application/vnd.google.protobuf")
# Takes a third of a millisecond to pack; more leaves the event loop.
MAX_INLINE_BYTES = 64 * 1024
# Prometheus' word for each status it uses.
ERROR_TYPES = {
    400: "bad_data",
    404: "not_found",
    406: "not_acceptable",
    413: "bad_data",
    422: "execution",
    503: "unavailable",
}


# What is asked or given: a type, the fields of an object by name, or None where nothing is said about it.
TypeSpec = Any


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The shape of an answer that does not stand in our envelope."""

    kind: Any


@dataclass(frozen=True, slots=True)
class QueryParam:
    """One parameter of an endpoint, for `openapi`; `kind` is its type as `schema` knows types."""

    name: str
    description: str
    kind: Any = str
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the route table; `role` None is open to everyone, `changes` brings the same-origin guard.

    The rest is what `openapi` says about it: a sentence, parameters, the fields of the body, and the media type of an
    answer that is not JSON. `gives` is for an answer whose type the signature of `answer` does not tell.
    """

    methods: tuple[str, ...]
    path: str
    role: Role | None
    handler: EndpointHandler
    changes: bool = False
    summary: str = ""
    params: tuple[QueryParam, ...] = ()
    body: TypeSpec = None
    response: TypeSpec = None
    media_type: str = "application/json"

    @property
    def response_type(self) -> TypeSpec:
        """What is answered: `gives`, or the dataclass or TypedDict that `answer` is declared to return."""
        if self.response is not None:
            return self.response
        declared = inspect.get_annotations(self.handler, eval_str=True).get("return")
        return declared if dataclasses.is_dataclass(declared) or typing.is_typeddict(declared) else None

    async def respond(self, request: Request) -> Response:
        answer = await self.handler(request)
        return answer if isinstance(answer, Response) else typed_response(answer)


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = orjson.dumps(content, default=wire.to_plain, option=JSON_OPTIONS)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def ok_response(**content: Any) -> Response:
    return json_response({"ok": True, **content})


def typed_response(content: DataclassInstance | Mapping[str, object]) -> Response:
    """A typed answer as JSON: its fields beside `ok`."""
    if isinstance(content, Mapping):
        return ok_response(**content)
    return ok_response(**wire.fields_of(content))


async def compress_response(response: Response, accepted: str) -> Response:
    """The answer as gzip where its reader takes it and has it sooner; a stream goes out as it comes."""
    body: bytes = getattr(response, "body", b"")
    is_text = response.headers.get("content-type", "").startswith(COMPRESSIBLE_TYPES)
    if len(body) < compression.LEAST_BYTES or not is_text or "content-encoding" in response.headers:
        return response
    response.headers["Vary"] = "Accept-Encoding"
    if compression.accepts_gzip(accepted):
        is_long = len(body) > MAX_INLINE_BYTES
        response.body = await asyncio.to_thread(compression.gzip_body, body) if is_long else compression.gzip_body(body)
        response.headers.update({"Content-Encoding": "gzip", "Content-Length": str(len(response.body))})
    return response


def error_response(path: str, *, status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the shape that belongs to the path."""
    if path.startswith(PROMETHEUS_PREFIX):
        return prometheus_error(problem, status=status, headers=headers)
    return json_response({"ok": False, "error": problem, "status": status}, status=status, headers=headers)


def prometheus_error(
    problem: str, *, status: int, kind: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    content = {"status": "error", "errorType": kind or ERROR_TYPES.get(status, "internal"), "error": problem}
    return json_response(content, status=status, headers=headers)


def parse_whole_number(text: str, *, max_digits: int = 12) -> int | None:
    """A number in plain digits, or None; `isdigit` alone lets in ² and five thousand digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits else None


def check_node(caller: Caller, *nodes: str | None) -> None:
    """403 unless this caller may speak for all of these nodes; None is what belongs to no node."""
    for node in nodes:
        if not caller.may_speak_for(node):
            subject = "no node in particular" if node is None else node[:100]
            raise HTTPException(403, f"the token {caller.name} is bound to {caller.nodes}, this is about {subject}")


async def read_body(request: Request, limit_bytes: int, *, remedy: str = "Send it in parts") -> bytes:
    """The whole body; 413 as soon as it is known to be longer than the limit, 408 when it does not come."""
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
        # An agent that was killed: nobody hears this answer, and it is no error of the hub's.
        raise HTTPException(400, "the sender went away before the body was whole") from error
    if size > limit_bytes:
        raise HTTPException(413, f"the body has {size:,} bytes or more, the limit is {limit_bytes:,}. {remedy}")
    return bytes(body)


async def read_json_object(request: Request, limit_bytes: int) -> dict[str, Any]:
    """The body as a JSON object, empty where there is none; 400 if it is something else."""
    try:
        body = orjson.loads(await read_body(request, limit_bytes) or b"{}")
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    return body
