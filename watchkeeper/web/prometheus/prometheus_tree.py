"""Write the syntax tree of a PromQL expression as Prometheus' /api/v1/parse_query does.

`prometheus_api` answers with it, and query editors draw it. Field names and values are those of
prometheus/prometheus, web/api/v1/translate_ast.go, read 2026-11.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.promql import ast, functions
from watchkeeper.web.prometheus.prometheus_json import write_value

TYPE_NAMES = {
    ast.ValueType.SCALAR: "scalar",
    ast.ValueType.INSTANT: "vector",
    ast.ValueType.RANGE: "matrix",
    ast.ValueType.STRING: "string",
}


def write_tree(expr: ast.Expr) -> dict[str, Any]:
    match expr:
        case ast.Number():
            return {"type": "numberLiteral", "val": write_value(expr.value)}
        case ast.String():
            return {"type": "stringLiteral", "val": expr.value}
        case ast.Paren():
            return {"type": "parenExpr", "expr": write_tree(expr.expr)}
        case ast.Unary():
            return {"type": "unaryExpr", "op": expr.op, "expr": write_tree(expr.expr)}
        case ast.Selector():
            return {"type": "vectorSelector", **_write_selector(expr)}
        case ast.RangeSelector():
            return {"type": "matrixSelector", "range": expr.range_ms, **_write_selector(expr.selector)}
        case ast.Subquery():
            step = {"range": expr.range_ms, "step": expr.step_ms or 0}
            return {"type": "subquery", "expr": write_tree(expr.expr), **step, **_offset_fields(expr)}
        case ast.FunctionCall():
            arguments = [write_tree(each) for each in expr.args]
            return {"type": "call", "func": _write_function(expr.function), "args": arguments}
        case ast.Aggregate():
            return {
                "type": "aggregation",
                "op": expr.op,
                "expr": write_tree(expr.expr),
                "param": None if expr.parameter is None else write_tree(expr.parameter),
                "grouping": list(expr.grouping),
                "without": expr.is_without,
            }
        case ast.Binary():
            return _write_binary(expr)


def _write_selector(selector: ast.Selector) -> dict[str, Any]:
    # Prometheus' parser puts the metric name before the braces after the matchers inside them.
    ordered = sorted(selector.matchers, key=lambda each: each.name == METRIC_NAME and selector.name is not None)
    matchers = [{"name": each.name, "value": each.value, "type": each.op.value} for each in ordered]
    return {"name": selector.name or "", "matchers": matchers, **_offset_fields(selector)}


def _offset_fields(expr: ast.Selector | ast.Subquery) -> dict[str, Any]:
    edge = expr.at.value if isinstance(expr.at, ast.AtEdge) else None
    fixed = expr.at if isinstance(expr.at, int) else None
    return {"offset": expr.offset_ms, "timestamp": fixed, "startOrEnd": edge}


def _write_function(name: str) -> dict[str, Any]:
    signature = functions.FUNCTIONS[name]
    kinds, returns = [TYPE_NAMES[kind] for kind in signature.args], TYPE_NAMES[signature.returns]
    return {"name": name, "argTypes": kinds, "variadic": signature.variadic, "returnType": returns}


def _write_binary(expr: ast.Binary) -> dict[str, Any]:
    matching = None
    if expr.matching is not None:
        matching = {
            "card": expr.matching.kind.value,
            "labels": list(expr.matching.labels),
            "on": expr.matching.is_on,
            "include": list(expr.matching.include),
        }
    sides = {"lhs": write_tree(expr.left), "rhs": write_tree(expr.right)}
    return {"type": "binaryExpr", "op": expr.op, **sides, "matching": matching, "bool": expr.returns_bool}
