"""Serve the exporters of a fleet in one process: `python -m bench._pages PORT GPUS`, with a page at /CLIENT/NODE.

Each scrape of a page gets the next readings in the format of dcgm-exporter. /counts has the number of requests of each
client, so that a benchmark knows what each scraper has read.
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


def render_pages(fleet: telemetry.Telemetry) -> list[list[bytes]]:
    """`pages[node][slot]`: the page of a node's exporter in each slot."""
    readings = dict(fleet.metrics())
    rendered = []
    for node in range(fleet.nodes):
        rows = [
            (str(fleet.labels(metric, gpu)).replace(", ", ","), values[gpu].tolist())
            for metric, values in readings.items()
            for gpu in fleet.gpus_of(node)
        ]
        rendered.append(
            [
                "".join(f"{series} {format_number(values[slot])}\n" for series, values in rows).encode()
                for slot in range(fleet.slots)
            ]
        )
    return rendered


def format_number(value: float) -> str:
    """Format a value as Go does: integers without a fraction."""
    return repr(int(value)) if value.is_integer() else repr(value)


class Exporters:
    """Serves pages over HTTP; requests have no body."""

    def __init__(self, content: list[list[bytes]]) -> None:
        self._content = content
        self._requests_of_client: Counter[str] = Counter()
        self._requests_of_path: Counter[str] = Counter()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split(b" ", 2)[1].decode()
                body = json.dumps(self._requests_of_client).encode() if path == "/counts" else self._page(path)
                writer.write(HEAD % len(body) + body)
                await writer.drain()
        writer.close()

    def _page(self, path: str) -> bytes:
        _, client, node = path.split("/")
        self._requests_of_client[client] += 1
        self._requests_of_path[path] += 1
        readings = self._content[int(node)]
        return readings[self._requests_of_path[path] % len(readings)]


async def main(port: int, gpus: int) -> None:
    exporters = Exporters(render_pages(telemetry.Telemetry(gpus, READINGS)))
    server = await asyncio.start_server(exporters.answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
