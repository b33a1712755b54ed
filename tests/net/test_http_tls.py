"""TLS connections that are cancelled while they connect leak no socket."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchkeeper.net.access import Access
from watchkeeper.net.http import Connection, HttpRequest

TOGETHER, TIMES, LONGEST_SECONDS = 10, 30, 0.06
# Shakes hands and never answers; a process of its own, because its sockets are not those that are watched.
MUTE = """
import asyncio, ssl, sys
async def serve():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*sys.argv[1:])
    server = await asyncio.start_server(lambda *_: asyncio.sleep(3600), "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(serve())
"""


@pytest.fixture
def mute_server(certificate: tuple[Path, Path]) -> Iterator[str]:
    line = [sys.executable, "-c", MUTE, *map(str, certificate)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        yield f"https://127.0.0.1:{int(server.stdout.readline())}/"
        server.kill()


@pytest.mark.slow
def test_requests_that_are_cancelled_while_they_connect_leak_no_socket(
    mute_server: str,
    certificate: tuple[Path, Path],
) -> None:
    access = Access(ca_file=str(certificate[0]), server_name="n1.example")

    async def give_up(seconds: float) -> None:
        requests = [
            asyncio.create_task(Connection(access=access).send(HttpRequest(mute_server))) for _ in range(TOGETHER)
        ]
        await asyncio.sleep(seconds)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    for turn in range(TIMES):
        asyncio.run(give_up(LONGEST_SECONDS * turn / TIMES))
        # An unclosed socket is found here, and is an error of this test.
        gc.collect()
