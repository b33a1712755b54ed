"""`python -m bench NAME [--json] [options]`: run one benchmark, which is the module bench/NAME.py.

A benchmark has `add_options(parser)` and `measure(options)`, which returns names and numbers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path


def main() -> None:
    names = sorted(
        module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.name[0] != "_"
    )
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    benches = parser.add_subparsers(dest="name", required=True, metavar="{" + ",".join(names) + "}")
    for name in names:
        bench = importlib.import_module(f"bench.{name}")
        bench_parser = benches.add_parser(name, help=(bench.__doc__ or "").splitlines()[0])
        bench_parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
        bench.add_options(bench_parser)
    options = parser.parse_args()
    numbers = importlib.import_module(f"bench.{options.name}").measure(options)
    if options.json:
        print(json.dumps({"bench": options.name, **numbers}))
    else:
        for name, number in numbers.items():
            print(
                f"{name:32} {number:,.4g}" if isinstance(number, (int, float)) else f"{name:32} {_format_value(number)}"
            )


def _format_value(value: object) -> str:
    """Format a value that is not a number: a dict with one line for each item."""
    if isinstance(value, dict):
        return "".join(f"\n  {name:88} {part}" for name, part in value.items())
    return str(value)


if __name__ == "__main__":
    main()
