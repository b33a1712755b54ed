"""The OpenAPI document against the routes, the OpenAPI specification, and the responses of a running hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import jsonschema
import openapi_spec_validator
import pytest
from starlette.routing import Route, WebSocketRoute

from tests.support import running_product as product
from tests.web.running import ask_json, serving
from tests.web.small_hub import SmallHub
from watchkeeper.kit import api_version, wire
from watchkeeper.web import openapi
from watchkeeper.web.app import create_app
from watchkeeper.web.auth.auth import Auth, Role
from watchkeeper.web.openapi import ResponseVariant, Schemas

APP = create_app(SmallHub().services, Auth())
DOCUMENT = openapi.build_document(APP.state.endpoints, version="0.0.0")
JSON = "application/json"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, ways in DOCUMENT["paths"].items():
        for method, operation in ways.items():
            yield method.upper(), path, operation


@pytest.mark.slow
def test_the_document_is_openapi() -> None:
    openapi_spec_validator.validate(json.loads(json.dumps(DOCUMENT)))


def test_the_document_has_exactly_the_routes() -> None:
    there = {
        (method, openapi.plain_path(route.path))
        for route in APP.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(method, path) for method, path, _ in operations()} == there
    sockets = {route.path for route in APP.routes if isinstance(route, WebSocketRoute)}
    assert sockets <= set(DOCUMENT["paths"])


def test_every_operation_has_a_summary_and_a_role() -> None:
    roles = {*Role, openapi.OPEN}
    for method, path, operation in operations():
        assert operation["summary"], f"{method} {path} has no words"
        assert operation["x-watchkeeper-role"] in roles
        assert operation["x-watchkeeper-role"] != openapi.OPEN or not operation["x-watchkeeper-changes"]


def test_a_role_in_the_document_is_the_role_at_the_gate() -> None:
    roles = {(method, path): operation["x-watchkeeper-role"] for method, path, operation in operations()}
    for row in APP.state.endpoints:
        for method in row.methods:
            assert roles[method, openapi.plain_path(row.path)] == (row.role or openapi.OPEN)


def test_every_answer_names_the_version_of_the_api() -> None:
    with serving(SmallHub()) as site:
        for path in ("/api/status", "/api/no-such-thing", openapi.PATH):
            assert site.ask(path).headers[api_version.HEADER.lower()] == DOCUMENT["info"]["version"]
        assert site.ask(openapi.PATH).json["info"]["version"] == str(api_version.API_VERSION)


@pytest.mark.slow
def test_a_running_hub_responds_as_the_document_says(tmp_path: Path) -> None:
    with product.up(tmp_path) as hub:
        product.await_that(hub.scraped)
        document = hub.get(openapi.PATH)
        walked, wrong = 0, []
        for path, ways in document["paths"].items():
            operation = ways.get("get")
            if operation is None or not path.startswith("/api/") or needs_something(operation):
                continue
            walked += 1
            status, answer = ask_json(hub.url + path)
            wrong += [f"{path} ({status}): {each}" for each in problems(status, answer, operation, document=document)]
    assert not wrong, "\n".join(wrong)
    assert walked > 15


def needs_something(operation: dict[str, Any]) -> bool:
    """Whether it cannot be asked as it stands: it needs a name, is no JSON, is an agent's, or is a socket."""
    is_ours = JSON in operation["responses"]["200"]["content"]
    needs = any(parameter["required"] for parameter in operation["parameters"])
    return (
        needs
        or not is_ours
        or operation["x-watchkeeper-role"] == Role.AGENT
        or operation["operationId"] == "get_api_live"
    )


def problems(status: int, answer: Any, operation: dict[str, Any], *, document: dict[str, Any]) -> list[str]:
    """409 is an answer too: a hub that is a few seconds old has nothing to forecast from."""
    if status not in (200, 409):
        return [str(answer)[:200]]
    schema = operation["responses"]["200" if status == 200 else "default"]["content"][JSON]["schema"]
    whole = {**schema, "components": document["components"]}
    problems = [error.message[:200] for error in jsonschema.Draft202012Validator(whole).iter_errors(answer)]
    documented = {name for part in schema.get("allOf", [schema]) for name in fields(part, document)} - {"ok"}
    # A documented response is complete: clients cannot rely on an undocumented field.
    unsaid: set[str] = set(answer) - documented - {"ok"} if documented else set()
    return problems + [f"not in the document: {name}" for name in sorted(unsaid)]


def fields(schema: dict[str, Any], document: dict[str, Any]) -> list[str]:
    named = document["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
    return list(named.get("properties", ()))


class Colour(StrEnum):
    RED = "red"


class Extra(TypedDict):
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A thing."""

    name: str
    colours: tuple[Colour, ...] = ()
    inner: Example | None = None


def test_a_schema_accepts_only_what_wire_writes() -> None:
    schemas = Schemas()
    whole = {**schemas.of(list[Example]), "components": {"schemas": schemas.components}}
    check = jsonschema.Draft202012Validator(whole)
    assert check.is_valid(wire.to_plain([Example("a", (Colour.RED,), Example("b"))]))
    assert not check.is_valid([{"name": "a", "colours": ["blue"], "inner": None}])
    assert not check.is_valid([{"name": "a"}])


def test_a_variant_adds_and_omits_fields_in_its_schema() -> None:
    schemas = Schemas()
    schemas.of(Annotated[Example, ResponseVariant("ShownThing", added={"extra": Extra}, omitted=("inner",))])
    assert set(schemas.components["ShownThing"]["properties"]) == {"name", "colours", "extra"}


def test_two_types_with_one_name_are_refused() -> None:
    schemas = Schemas()
    schemas.of(Annotated[Example, ResponseVariant("Same")])
    with pytest.raises(TypeError, match="two types have the component name Same"):
        schemas.of(Annotated[Example, ResponseVariant("Same", added={"a": int})])
