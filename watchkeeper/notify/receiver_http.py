"""Call a receiver or an Alertmanager over HTTP, with limits on each wait, the total time and the answer's size.

Calls block, so callers use a thread.
"""

from __future__ import annotations

from watchkeeper.errors import CollectError, ReceiverError
from watchkeeper.net import sync_http
from watchkeeper.net.sync_http import HttpLimits

# The part of an answer that is stored and shown.
ANSWER_BYTES = 200
Headers = dict[str, str]
DEFAULT_LIMITS = HttpLimits(total_seconds=30.0, idle_seconds=10.0, answer_bytes=ANSWER_BYTES)


def http_post(url: str, body: bytes, headers: Headers, *, limits: HttpLimits = DEFAULT_LIMITS) -> tuple[int, str]:
    """Return the status and the start of the answer; raise ReceiverError without an answer."""
    status, answer = http_call("POST", url, headers, body=body, limits=limits)
    return status, answer.decode("utf-8", "replace").strip()


def http_call(
    method: str, url: str, headers: Headers, *, body: bytes | None = None, limits: HttpLimits = DEFAULT_LIMITS
) -> tuple[int, bytes]:
    """Return the status and at most `answer_bytes` of the answer; raise ReceiverError without an answer in time."""
    try:
        client = sync_http.HttpClient(url, limits=limits, allows_local_address=False)
        with client.open(sync_http.Request(method, body=body, headers=headers)) as answer:
            return answer.status, answer.read(limits.answer_bytes)
    except sync_http.NoAnswer as error:
        problem = error.problem if error.is_timeout else f"unreachable: {error.problem}"
        raise ReceiverError(problem, where=error.where, may_retry=True) from error
    except CollectError as error:
        raise ReceiverError(error.problem, where=error.where) from error
