"""Every error that Watchkeeper raises on purpose.

An error for people has four parts: where, what, what is true now, what to do. Library errors are
wrapped where they occur and chained, so that no code above a driver depends on the library.
"""

from __future__ import annotations

# A value quoted in a message is truncated here: long enough to recognise, short enough for one log line.
QUOTE_LIMIT = 120


def quote(value: object) -> str:
    """An external value as it is quoted in a message, truncated to a readable length."""
    text = repr(value)
    return text if len(text) <= QUOTE_LIMIT else f"{text[:QUOTE_LIMIT]}… ({len(text)} characters)"


def error_reason(error: Exception | str) -> str:
    """The text of an error, without the errno and path that Python adds: our messages begin with the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class WatchkeeperError(Exception):
    """Base class of our errors; `where`, `now` and `remedy` complete the problem."""

    def __init__(
        self, problem: str, *, where: str | None = None, now: str | None = None, remedy: str | None = None
    ) -> None:
        self.problem = problem
        self.where = where
        self.now = now
        self.remedy = remedy
        super().__init__(problem)

    def __str__(self) -> str:
        head = f"{self.where}: {self.problem}" if self.where else self.problem
        sentences = [head, *(part for part in (self.now, self.remedy) if part)]
        ends = [sentence if sentence.endswith(("?", "!")) else f"{sentence.rstrip('.')}." for sentence in sentences]
        return " ".join(ends).removesuffix(".")


class SettingsError(WatchkeeperError):
    """The configuration cannot be used; `problems` names each file and dotted key."""

    def __init__(
        self, problem: str, *, problems: tuple[str, ...] = (), where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem, where=where, remedy=remedy)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {problem}" for problem in self.problems)])


class StartRefused(WatchkeeperError):
    """The process cannot start: a port in use, a data directory of another program, an open listener without tokens."""


class InputError(WatchkeeperError):
    """An input file of a command cannot be read; this is wrong usage, not a finding about its content."""


class WireError(WatchkeeperError):
    """Decoded data does not match its type; `problems` has one line per path."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class PackError(WatchkeeperError):
    """A row of a pack is invalid; `where` is its file and line."""


class RuleFileError(WatchkeeperError):
    """A rule file is invalid; one error per problem, with its line."""

    def __init__(self, problem: str, *, path: str, line: int | None = None, remedy: str | None = None) -> None:
        super().__init__(problem, where=path if line is None else f"{path}:{line}", remedy=remedy)
        self.path = path
        self.line = line


class QueryError(WatchkeeperError):
    """A PromQL expression cannot be parsed or evaluated; line and column start at 1."""

    def __init__(
        self, problem: str, *, line: int | None = None, column: int | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem, where=None if line is None else f"{line}:{column}", remedy=remedy)
        self.line = line
        self.column = column


class QueryLimit(QueryError):
    """A query exceeds a limit of the engine; the message has the limit and the value."""


class QueryTimeout(QueryError):
    """A query reached its deadline, or its client disconnected."""


class CollectError(WatchkeeperError):
    """A source did not answer, or its answer is invalid."""


class StoreError(WatchkeeperError):
    """The store or the journal cannot write or return data."""


class StoreFull(StoreError):
    """The limit of series is reached: new series are dropped, existing series are still written."""


class JournalConflict(StoreError):
    """A write is based on an outdated version, or comes from a leader whose epoch has ended."""


class NotLeader(StoreError):
    """This hub is a follower and writes nothing; the message names the leader."""


class InvalidTransition(WatchkeeperError):
    """A life cycle does not allow this change of state."""


class ReceiverError(WatchkeeperError):
    """A notification could not be delivered."""

    def __init__(self, problem: str, *, where: str | None = None, may_retry: bool = False) -> None:
        super().__init__(problem, where=where)
        self.may_retry = may_retry


class ActionRefused(WatchkeeperError):
    """A guard refused an action; the message names the guard, its limit and the value."""


class ActionFailed(WatchkeeperError):
    """An action on a machine failed."""


class HubError(WatchkeeperError):
    """The hub is unreachable or refused a request; `status` is its HTTP status, None without an answer."""

    def __init__(
        self, problem: str, *, status: int | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem, where=where, remedy=remedy)
        self.status = status

    @property
    def has_answered(self) -> bool:
        """Whether the hub handled the request; False if it is unreachable, refused the login, or failed (5xx)."""
        return self.status is not None and self.status not in (401, 403) and self.status < 500
