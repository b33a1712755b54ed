"""Asking slurmctld, by its commands or by slurmrestd, with a deadline and a limit on the answer.

Versions differ in what they can write: `scontrol --json` came with 23.02, slurmrestd's paths carry the version of its
interface. So each question is a list of ways, best first; the way that worked last is taken first the next time, and
when it stops working, because Slurm was upgraded, the others are tried again. `collect/slurm_watch` puts the questions.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.net import http, slurm_access
from watchkeeper.readers.clusters import slurm_records as records

T = TypeVar("T")

# `squeue --json` takes some 7 KiB a job; slurmctld with more than this many has other worries.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
ASK_SECONDS = 30.0
# slurmrestd 22.05 speaks v0.0.36 to v0.0.38, 26.05 v0.0.42 and later.
PATHS = re.compile(r"/slurm/(v\d+\.\d+\.(\d+))/(?:nodes|jobs)/?\"")


class SlurmReader(Protocol):
    """A cluster that can be asked; CollectError where it does not answer."""

    async def nodes(self) -> list[records.NodeRecord]: ...

    async def jobs(self) -> list[records.JobRecord]: ...

    async def leaves(self) -> dict[str, str]: ...

    async def limits(self) -> list[records.AccountLimit]: ...


@dataclass(frozen=True, slots=True)
class QueryCommand(Generic[T]):
    """One command, and how its answer is read."""

    command: tuple[str, ...]
    read: Callable[[str], T]


@dataclass(slots=True)
class FallbackQuery(Generic[T]):
    """Ways to learn one thing; the one that worked last is tried first."""

    alternatives: list[QueryCommand[T]]

    async def run(self, ask: commands.CommandRunner) -> T:
        problems: list[str] = []
        for way in list(self.alternatives):
            answer = await asyncio.to_thread(ask.run, way.command)
            said = answer.text.strip().partition("\n")[0][:200]
            if answer.outcome is commands.CommandOutcome.TIMED_OUT:
                # Another way asks the same slurmctld, and would wait as long.
                raise CollectError(said, where=" ".join(way.command))
            try:
                if answer.outcome is not commands.CommandOutcome.ANSWERED:
                    raise CollectError(said, where=" ".join(way.command))
                # Seconds for ten thousand jobs: not on the loop.
                found = await asyncio.to_thread(way.read, answer.text)
            except CollectError as error:
                problems.append(str(error))
                continue
            self.alternatives = [way, *(other for other in self.alternatives if other is not way)]
            return found
        raise CollectError("; ".join(problems))


def _json_nodes(text: str) -> list[records.NodeRecord]:
    return records.read_nodes_json(text, where="nodes")


def _json_jobs(text: str) -> list[records.JobRecord]:
    return records.read_jobs_json(text, where="jobs")


def _text_nodes(text: str) -> list[records.NodeRecord]:
    return _some(records.read_nodes_text(text), text, "NodeName=")


def _text_jobs(text: str) -> list[records.JobRecord]:
    found = records.read_jobs_text(text)
    return found if "No jobs in the system" in text else _some(found, text, "JobId=")


def _some(found: list[T], text: str, mark: str) -> list[T]:
    if not found:
        raise CollectError(f"no {mark} in the answer, which begins with `{text[:60].strip()}`")
    return found


@dataclass(slots=True)
class SlurmCommandReader:
    """slurmctld asked by the commands of this machine."""

    ask: commands.CommandRunner = field(
        default_factory=lambda: commands.CommandRunner(timeout_seconds=ASK_SECONDS, max_output_bytes=MAX_ANSWER_BYTES)
    )
    _nodes: FallbackQuery[list[records.NodeRecord]] = field(
        default_factory=lambda: FallbackQuery(
            [
                QueryCommand(("scontrol", "show", "nodes", "--json"), _json_nodes),
                QueryCommand(("sinfo", "--json"), _json_nodes),
                QueryCommand(("scontrol", "-d", "-o", "show", "node"), _text_nodes),
            ]
        )
    )
    _jobs: FallbackQuery[list[records.JobRecord]] = field(
        default_factory=lambda: FallbackQuery(
            [
                QueryCommand(("squeue", "--json"), _json_jobs),
                QueryCommand(("scontrol", "-d", "show", "job"), _text_jobs),
            ]
        )
    )

    async def nodes(self) -> list[records.NodeRecord]:
        return await self._nodes.run(self.ask)

    async def jobs(self) -> list[records.JobRecord]:
        return await self._jobs.run(self.ask)

    async def leaves(self) -> dict[str, str]:
        return records.read_topology_leaves(await self._say("scontrol", "show", "topology"))

    async def limits(self) -> list[records.AccountLimit]:
        shown = ("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user,grptres")
        return records.read_limits_text(await self._say(*shown))

    async def _say(self, *command: str) -> str:
        """What a command prints; nothing where this cluster does not have the thing."""
        answer = await asyncio.to_thread(self.ask.run, command)
        if answer.outcome is commands.CommandOutcome.TIMED_OUT:
            raise CollectError(answer.text, where=" ".join(command))
        return answer.text if answer.outcome is commands.CommandOutcome.ANSWERED else ""


@dataclass(slots=True)
class SlurmRestReader:
    """slurmrestd, over HTTP with the JWT in `token_file`, or over its socket, `unix:///run/slurmrestd.sock`."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    _version: str | None = None

    async def nodes(self) -> list[records.NodeRecord]:
        return await asyncio.to_thread(records.read_nodes_json, await self._get("nodes"), where=self.url)

    async def jobs(self) -> list[records.JobRecord]:
        return await asyncio.to_thread(records.read_jobs_json, await self._get("jobs"), where=self.url)

    async def leaves(self) -> dict[str, str]:
        """slurmrestd does not tell the topology."""
        return {}

    async def limits(self) -> list[records.AccountLimit]:
        return []

    async def _get(self, what: str) -> str:
        version = self._version or await self._find_version()
        status, text = await self._send(f"/slurm/{version}/{what}")
        if status == 404:
            # An upgraded slurmrestd drops the interface of two versions ago.
            version = await self._find_version()
            status, text = await self._send(f"/slurm/{version}/{what}")
        if status != 200:
            # 22.05 answers 500 and "Unspecified error" to a token that slurmctld does not accept.
            check = None if self.token_file is None else f"Check the token in {self.token_file}, and its age"
            where = f"{self.url}/slurm/{version}/{what}"
            raise CollectError(f"answered {status}: {_refusal(text)}", where=where, remedy=check)
        self._version = version
        return text

    async def _find_version(self) -> str:
        """The newest interface that this slurmrestd speaks."""
        status, text = await self._send("/openapi/v3")
        found = {int(match[2]): match[1] for match in PATHS.finditer(text.replace("\\/", "/"))}
        if not found:
            said = f": {_refusal(text)}" if status != 200 else ""
            raise CollectError(
                f"answered {status} and names no interface of Slurm{said}",
                where=f"{self.url}/openapi/v3",
                remedy="Check the address, the token, and that slurmrestd may load its openapi plugin",
            )
        return found[max(found)]

    async def _send(self, path: str) -> tuple[int, str]:
        socket = self.url.removeprefix("unix://") if self.url.startswith("unix://") else None
        origin = "http://localhost" if socket is not None else self.url.rstrip("/")
        connection = http.Connection(timeout_seconds=ASK_SECONDS, max_body_bytes=MAX_ANSWER_BYTES, unix_socket=socket)
        try:
            response = await connection.send(http.HttpRequest(origin + path, headers=self._headers()))
        finally:
            await connection.aclose()
        return response.status, response.body.decode("utf-8", "replace")

    def _headers(self) -> dict[str, str]:
        try:
            return slurm_access.headers(self.user, self.token_file)
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.token_file)) from error


def _refusal(text: str) -> str:
    """What slurmrestd says is wrong: the texts of its `errors`, which stand behind much else, or how it begins."""
    try:
        listed = json.loads(text).get("errors")
        said = [": ".join(one[name] for name in ("description", "error") if one.get(name)) for one in listed]
    except (ValueError, AttributeError, TypeError, RecursionError):
        said = []
    return "; ".join(one for one in said if one)[:200] or text[:200].strip()
