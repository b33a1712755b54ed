"""`python -m bench NAME [--json] [options]`: run one bench; each is the module bench/NAME.py.

A bench has `add_options(parser)` and `measure(options)`, which returns names and numbers.
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
        one = benches.add_parser(name, help=(bench.__doc__ or "").splitlines()[0])
        one.add_argument("--json", action="store_true", help="one JSON object instead of lines")
        bench.add_options(one)
    options = parser.parse_args()
    numbers = importlib.import_module(f"bench.{options.name}").measure(options)
    if options.json:
        print(json.dumps({"bench": options.name, **numbers}))
    else:
        for name, number in numbers.items():
            print(f"{name:32} {number:,.4g}" if isinstance(number, (int, float)) else f"{name:32} {_lines(number)}")


def _lines(found: object) -> str:
    """What is not one number: a line for each part."""
    if isinstance(found, dict):
        return "".join(f"\n  {name:88} {part}" for name, part in found.items())
    return str(found)


if __name__ == "__main__":
    main()
