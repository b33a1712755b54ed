"""Exporters of a whole fleet in one process: `python -m bench._pages PORT GPUS`, a page at /ANYTHING/NODE.

Each scrape of a page gets the next of some readings, as text that dcgm-exporter would write. /counts says how often
each first part of the path was asked, so that a bench knows what each scraper has read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter

from bench import telemetry

READINGS = 4
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"


def pages(fleet: telemetry.Telemetry) -> list[list[bytes]]:
    """`pages[node][slot]`: what a node's exporter says in each slot."""
    readings = dict(fleet.metrics())
    out = []
    for node in range(fleet.nodes):
        rows = [
            (str(fleet.labels(metric, gpu)).replace(", ", ","), values[gpu].tolist())
            for metric, values in readings.items()
            for gpu in fleet.gpus_of(node)
        ]
        out.append(
            [
                "".join(f"{series} {write(values[slot])}\n" for series, values in rows).encode()
                for slot in range(fleet.slots)
            ]
        )
    return out


def write(value: float) -> str:
    """As Go prints a float: whole numbers without a fraction."""
    return repr(int(value)) if value.is_integer() else repr(value)


class Exporters:
    """Answers connections; requests have no body."""

    def __init__(self, content: list[list[bytes]]) -> None:
        self._content = content
        self._asked: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split(b" ", 2)[1].decode()
                body = json.dumps(self._asked).encode() if path == "/counts" else self._page(path)
                writer.write(HEAD % len(body) + body)
                await writer.drain()
        writer.close()

    def _page(self, path: str) -> bytes:
        _, who, node = path.split("/")
        self._asked[who] += 1
        self._seen[path] += 1
        readings = self._content[int(node)]
        return readings[self._seen[path] % len(readings)]


async def main(port: int, gpus: int) -> None:
    exporters = Exporters(pages(telemetry.Telemetry(gpus, READINGS)))
    server = await asyncio.start_server(exporters.answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
