"""Every error that Watchkeeper raises on purpose.

An error for people has four parts: where, what, what is true now, what to do. Library errors are
wrapped at the edge where they appear and chained, so nothing above a driver knows the library.
"""

from __future__ import annotations

# A value quoted in a message is cut here: long enough to recognise, short enough for one log line.
QUOTE_LIMIT = 120


def quote(value: object) -> str:
    """Show a value of the outside world in a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= QUOTE_LIMIT else f"{text[:QUOTE_LIMIT]}… ({len(text)} characters)"


def error_reason(error: Exception | str) -> str:
    """What the system says, without the number and the path that Python adds: our messages begin with the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class WatchkeeperError(Exception):
    """Base of the tree; `where`, `now` and `remedy` complete the problem."""

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
    """The process must not start like this: a taken port, a foreign data directory, an open listener without tokens."""


class InputError(WatchkeeperError):
    """A file that a command was given cannot be read: wrong use, not something that was found in it."""


class WireError(WatchkeeperError):
    """A value from the wire does not have the promised shape; `problems` has one line per path."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class PackError(WatchkeeperError):
    """A row of the shipped knowledge is broken; `where` is its file and line."""


class RuleFileError(WatchkeeperError):
    """A rule file cannot be used; one error per problem, with the line it stands on."""

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
    """A query would cost more than this engine allows; the message has both numbers."""


class CollectError(WatchkeeperError):
    """A source did not answer, or answered with something else than it should."""


class StoreError(WatchkeeperError):
    """The store or the journal cannot keep or give back what it was asked to."""


class StoreFull(StoreError):
    """There is no room for another series; those that are known go on."""


class JournalConflict(StoreError):
    """A write was based on a version, or made in a leader epoch, that is no longer the current one."""


class NotLeader(StoreError):
    """Of several hubs another one leads: this one writes nothing, and the message says where the leader is."""


class InvalidTransition(WatchkeeperError):
    """A life cycle does not allow this step."""


class ReceiverError(WatchkeeperError):
    """A notification could not be handed over."""

    def __init__(self, problem: str, *, where: str | None = None, may_retry: bool = False) -> None:
        super().__init__(problem, where=where)
        self.may_retry = may_retry


class ActionRefused(WatchkeeperError):
    """A guard did not let an action through; the message says which guard and by how much."""


class ActionFailed(WatchkeeperError):
    """An action was tried on a machine and did not succeed."""


class HubError(WatchkeeperError):
    """The hub could not be reached, or refused a request; `status` is its HTTP answer, if there was one."""

    def __init__(
        self, problem: str, *, status: int | None = None, where: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem, where=where, remedy=remedy)
        self.status = status

    @property
    def has_answered(self) -> bool:
        """No: it was not reached, did not let us ask, or could not answer, and nothing is known about the fleet."""
        return self.status is not None and self.status not in (401, 403) and self.status < 500
