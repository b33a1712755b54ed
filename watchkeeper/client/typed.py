"""A hub as Python values: what the console does, for programs.

    from watchkeeper.client.typed import Client
    for card in Client("http://127.0.0.1:9480").incidents():
        print(card.id, card.severity, card.title, card.next_step)

Each method is one request over `client.hub`, with its timeout and its errors: HubError says where, what and what to
do. Answers are the dataclasses of model/ and of `client.answers`; times are aware UTC, unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from watchkeeper.client import answers
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.client.hub import TIMEOUT_SECONDS, HubClient
from watchkeeper.client.reading import read
from watchkeeper.kit import wire
from watchkeeper.model.fleet import Gpu
from watchkeeper.model.incidents import Incident
from watchkeeper.model.jobs import JobReport
from watchkeeper.model.node_list import NodeLine
from watchkeeper.model.standing import Standing
from watchkeeper.net.access import NOTHING, Access


class Client:
    """One hub; `plain` asks it for what this class has no method for, and answers with dictionaries."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: Access = NOTHING,
    ) -> None:
        self.plain = HubClient(url, token=token, timeout_seconds=timeout_seconds, access=access)

    @classmethod
    def over(cls, plain: HubClient) -> Client:
        """The same hub as another client's."""
        made = cls.__new__(cls)
        made.plain = plain
        return made

    def fleet(self) -> answers.Fleet:
        """The inventory in the order of the map, and who holds which GPU now."""
        return read(answers.Fleet, self.plain.fleet())

    def nodes(self, *, state: str | None = None, pool: str | None = None) -> tuple[NodeLine, ...]:
        return read(tuple[NodeLine, ...], self.plain.nodes(state=state, pool=pool)["nodes"])

    def gpu(self, uuid: str) -> answers.GpuPage:
        found = self.plain.gpu(uuid)
        return answers.GpuPage(
            read(Gpu, found["gpu"]),
            str(found["node"]["name"]),
            found["labels"],
            read(tuple[answers.Card, ...], found["incidents"]),
        )

    def incidents(self, *, all: bool = False) -> tuple[answers.Card, ...]:
        """Open incidents, newest first; with `all`, resolved ones too."""
        return read(tuple[answers.Card, ...], self.plain.incidents(all=all))

    def incident(self, id: str) -> answers.Detail:
        return _detail(self.plain.incident(id))

    def acknowledge(self, id: str) -> answers.Detail:
        return _detail(self.plain.acknowledge(id))

    def resolve(self, id: str, *, why: str) -> answers.Detail:
        return _detail(self.plain.resolve(id, why=why))

    def note(self, id: str, *, text: str) -> answers.Detail:
        return _detail(self.plain.note(id, text=text))

    def assign(self, id: str, *, to: str) -> Incident:
        return read(Incident, self.plain.assign(id, to=to)["incident"])

    def repairs(self, *, all: bool = False) -> answers.Repairs:
        """Repairs that wait, run or hold a node; with `all`, the newest that ended too."""
        return read(answers.Repairs, self.plain.repairs(all=all))

    def approve(self, incident: str, *, digest: str) -> answers.ShownRepair:
        """Approve the plan that has this digest, and no other."""
        return read(answers.ShownRepair, self.plain.repair_word(incident, "approve", digest=digest))

    def reject(self, incident: str, *, why: str) -> answers.ShownRepair:
        return read(answers.ShownRepair, self.plain.repair_word(incident, "reject", why=why))

    def silences(self) -> tuple[answers.Silence, ...]:
        return read(tuple[answers.Silence, ...], self.plain.silences()["silences"])

    def silence(self, matchers: Sequence[str], *, reason: str, lasting: str) -> answers.Silence:
        """Silence what fits all matchers, such as node="gpu-r01-01", for a time such as 2h."""
        made = self.plain.silence(matchers, reason=reason, **{"for": lasting})
        return read(answers.Silence, made["silence"])

    def end_silence(self, id: str) -> answers.Silence:
        return read(answers.Silence, self.plain.end_silence(id)["silence"])

    def jobs(self, **asked: str | int | None) -> answers.Jobs:
        """The gravest first; `state`, `team`, `cluster` and `limit` choose."""
        return read(answers.Jobs, self.plain.jobs(**asked))

    def job(self, id: str) -> JobReport:
        return read(JobReport, self.plain.job(id))

    def usage(self, **asked: Any) -> answers.Hours:
        """GPU-hours by `by`, only `of`, from `since` to `until`; see docs/howto/cost.md."""
        return read(answers.Hours, self.plain.usage("usage", **asked))

    def cost(self, **asked: Any) -> answers.Bill:
        return read(answers.Bill, self.plain.usage("cost", **asked))

    def standing(self, *, cluster: str | None = None) -> Standing:
        """What is free, held and stranded now."""
        return read(Standing, self.plain.capacity("now", cluster=cluster)["standing"])

    def forecast(self, **asked: str | None) -> Mapping[str, Any]:
        """When the fleet is full: `sentence`, `forecast`, or a `reason` for none; see docs/howto/capacity.md."""
        return self.plain.capacity("forecast", **asked)

    def slos(self) -> tuple[answers.Budget, ...]:
        return read(tuple[answers.Budget, ...], self.plain.slos())

    def rules(self) -> list[dict[str, Any]]:
        """Rule groups with their rules and alerts, as Prometheus shows them."""
        groups: list[dict[str, Any]] = self.plain.prometheus("rules")["groups"]
        return groups

    def query(self, expr: str, *, at: datetime | None = None, limit: int | None = None) -> answers.Asked:
        """PromQL at one time; `limit` cuts the series, and the warnings then say so."""
        form = {"query": expr, "time": None if at is None else wire.format_time(at), "limit": _text(limit)}
        return _asked(self.plain.prometheus("query", form))

    def query_range(self, expr: str, *, start: datetime, end: datetime, step: str) -> answers.Asked:
        span = {"start": wire.format_time(start), "end": wire.format_time(end), "step": step}
        return _asked(self.plain.prometheus("query_range", {"query": expr, **span}))


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _detail(plain: dict[str, Any]) -> answers.Detail:
    return read(answers.Detail, {**plain, "place_name": plain["incident"]["place_name"]})


def _asked(found: dict[str, Any]) -> answers.Asked:
    """Prometheus' data object: a vector, a matrix, or one value without labels."""
    rows, warnings = found["result"], tuple(found.get("warnings", ()))
    if found["resultType"] in ("scalar", "string"):
        return answers.Asked((answers.Series({}, _points([rows])),), warnings)
    # A native histogram is no number: such a series has no points here.
    series = (
        answers.Series(row["metric"], _points(row.get("values") or ([row["value"]] if "value" in row else ())))
        for row in rows
    )
    return answers.Asked(tuple(series), warnings)


def _points(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in pairs)
