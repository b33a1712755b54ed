"""Forward requests of the console to the simulated fleet of a hub."""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.net import http


@dataclass(frozen=True, slots=True)
class SimulatorProxy:
    url: str

    async def request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = http.Connection()
        try:
            headers = {"Content-Type": "application/json"}
            request = http.HttpRequest(self.url + path, method=method, headers=headers, body=body or b"")
            response = await connection.send(request)
            return response.status, response.body
        finally:
            await connection.aclose()
