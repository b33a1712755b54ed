"""Query slurmctld, through Slurm's commands or slurmrestd, with a timeout and a size limit.

Output formats depend on the version (`scontrol --json` exists since 23.02), so each query is a list of alternatives,
best first. The one that worked last is tried first; when it stops working, because Slurm was upgraded, the others are
tried again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.net import access, http
from watchkeeper.readers.clusters import slurm_records as records

T = TypeVar("T")

# `squeue --json` writes about 7 KiB per job: enough for 37,000 jobs.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
QUERY_TIMEOUT_SECONDS = 30.0
# slurmrestd 22.05 supports v0.0.36 to v0.0.38, 26.05 v0.0.42 and later.
VERSION_PATHS = re.compile(r"/slurm/(v\d+\.\d+\.(\d+))/(?:nodes|jobs)/?\"")


class SlurmReader(Protocol):
    """Queries of one cluster; CollectError if Slurm does not answer."""

    async def nodes(self) -> list[records.NodeRecord]: ...

    async def jobs(self) -> list[records.JobRecord]: ...

    async def leaves(self) -> dict[str, str]: ...

    async def limits(self) -> list[records.AccountLimit]: ...


@dataclass(frozen=True, slots=True)
class QueryCommand(Generic[T]):
    command: tuple[str, ...]
    read: Callable[[str], T]


@dataclass(slots=True)
class FallbackQuery(Generic[T]):
    """Alternative commands for one query; the one that worked last is tried first."""

    alternatives: list[QueryCommand[T]]

    async def run(self, runner: commands.CommandRunner) -> T:
        problems: list[str] = []
        for alternative in list(self.alternatives):
            result = await asyncio.to_thread(runner.run, alternative.command)
            first_line = result.text.strip().partition("\n")[0][:200]
            if result.outcome is commands.CommandOutcome.TIMED_OUT:
                # The alternatives query the same slurmctld, and would time out as well.
                raise CollectError(first_line, where=" ".join(alternative.command))
            try:
                if result.outcome is not commands.CommandOutcome.ANSWERED:
                    raise CollectError(first_line, where=" ".join(alternative.command))
                # Parsing 10,000 jobs takes seconds: not on the event loop.
                parsed = await asyncio.to_thread(alternative.read, result.text)
            except CollectError as error:
                problems.append(str(error))
                continue
            self.alternatives = [alternative, *(other for other in self.alternatives if other is not alternative)]
            return parsed
        raise CollectError("; ".join(problems))


def _text_nodes(text: str) -> list[records.NodeRecord]:
    return _require_rows(records.read_nodes_text(text), text, "NodeName=")


def _text_jobs(text: str) -> list[records.JobRecord]:
    jobs = records.read_jobs_text(text)
    return jobs if "No jobs in the system" in text else _require_rows(jobs, text, "JobId=")


def _require_rows(rows: list[T], text: str, marker: str) -> list[T]:
    if not rows:
        raise CollectError(f"no {marker} in the output, which begins with `{text[:60].strip()}`")
    return rows


class SlurmCommandReader:
    """Query slurmctld with the commands of this host."""

    def __init__(self, runner: commands.CommandRunner | None = None) -> None:
        self._runner = runner or commands.CommandRunner(QUERY_TIMEOUT_SECONDS, MAX_ANSWER_BYTES)
        json_nodes = partial(records.read_nodes_json, where="nodes")
        self._nodes = FallbackQuery(
            [
                QueryCommand(("scontrol", "show", "nodes", "--json"), json_nodes),
                QueryCommand(("sinfo", "--json"), json_nodes),
                QueryCommand(("scontrol", "-d", "-o", "show", "node"), _text_nodes),
            ]
        )
        self._jobs = FallbackQuery(
            [
                QueryCommand(("squeue", "--json"), partial(records.read_jobs_json, where="jobs")),
                QueryCommand(("scontrol", "-d", "show", "job"), _text_jobs),
            ]
        )

    async def nodes(self) -> list[records.NodeRecord]:
        return await self._nodes.run(self._runner)

    async def jobs(self) -> list[records.JobRecord]:
        return await self._jobs.run(self._runner)

    async def leaves(self) -> dict[str, str]:
        return records.read_topology_leaves(await self._read_output("scontrol", "show", "topology"))

    async def limits(self) -> list[records.AccountLimit]:
        command = ("sacctmgr", "-n", "-P", "show", "assoc", "format=account,user,grptres")
        return records.read_limits_text(await self._read_output(*command))

    async def _read_output(self, *command: str) -> str:
        """The output of a command; empty if it fails because the cluster has no topology or accounting."""
        result = await asyncio.to_thread(self._runner.run, command)
        if result.outcome is commands.CommandOutcome.TIMED_OUT:
            raise CollectError(result.text, where=" ".join(command))
        return result.text if result.outcome is commands.CommandOutcome.ANSWERED else ""


@dataclass(slots=True)
class SlurmRestReader:
    """Query slurmrestd, over HTTP with the JWT in `token_file`, or over a socket: `unix:///run/slurmrestd.sock`."""

    url: str
    token_file: Path | None = None
    user: str | None = None
    _version: str | None = None

    async def nodes(self) -> list[records.NodeRecord]:
        return await asyncio.to_thread(records.read_nodes_json, await self._get("nodes"), where=self.url)

    async def jobs(self) -> list[records.JobRecord]:
        return await asyncio.to_thread(records.read_jobs_json, await self._get("jobs"), where=self.url)

    async def leaves(self) -> dict[str, str]:
        """Always empty: slurmrestd does not report the topology."""
        return {}

    async def limits(self) -> list[records.AccountLimit]:
        return []

    async def _get(self, resource: str) -> str:
        version = self._version or await self._read_version()
        status, text = await self._send(f"/slurm/{version}/{resource}")
        if status == 404:
            # An upgraded slurmrestd removes the API of two versions ago.
            version = await self._read_version()
            status, text = await self._send(f"/slurm/{version}/{resource}")
        if status != 200:
            # 22.05 answers 500 and "Unspecified error" to a token that slurmctld does not accept.
            check = f"Check the token in {self.token_file}, and that it has not expired"
            remedy = None if self.token_file is None else check
            where = f"{self.url}/slurm/{version}/{resource}"
            raise CollectError(f"answered {status}: {_describe_refusal(text)}", where=where, remedy=remedy)
        self._version = version
        return text

    async def _read_version(self) -> str:
        """The newest API version that this slurmrestd supports."""
        status, text = await self._send("/openapi/v3")
        version_by_number = {int(match[2]): match[1] for match in VERSION_PATHS.finditer(text.replace("\\/", "/"))}
        if not version_by_number:
            reason = f": {_describe_refusal(text)}" if status != 200 else ""
            raise CollectError(
                f"answered {status} and lists no Slurm API{reason}",
                where=f"{self.url}/openapi/v3",
                remedy="Check the URL, the token, and that slurmrestd loads its openapi plugin",
            )
        return version_by_number[max(version_by_number)]

    async def _send(self, path: str) -> tuple[int, str]:
        socket = self.url.removeprefix("unix://") if self.url.startswith("unix://") else None
        origin = "http://localhost" if socket is not None else self.url.rstrip("/")
        connection = http.Connection(
            timeout_seconds=QUERY_TIMEOUT_SECONDS, max_body_bytes=MAX_ANSWER_BYTES, unix_socket=socket
        )
        try:
            headers = access.slurm_headers(self.user, self.token_file)
        except OSError as error:
            raise CollectError(f"cannot be read: {error.strerror}", where=str(self.token_file)) from error
        try:
            response = await connection.send(http.HttpRequest(origin + path, headers=headers))
        finally:
            await connection.aclose()
        return response.status, response.body.decode("utf-8", "replace")


def _describe_refusal(text: str) -> str:
    """The texts of slurmrestd's `errors`, or the beginning of its reply."""
    try:
        errors = json.loads(text).get("errors")
        reasons = [": ".join(error[name] for name in ("description", "error") if error.get(name)) for error in errors]
    except (ValueError, AttributeError, TypeError, RecursionError):
        reasons = []
    return "; ".join(reason for reason in reasons if reason)[:200] or text[:200].strip()
