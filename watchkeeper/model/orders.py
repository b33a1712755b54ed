"""Work orders: tasks that a hub gives to one node's agent, sealed so that no other sender is accepted.

The hub writes an `Order`, the node's agent answers with a `Receipt`; both travel as an `Envelope`, a text and its
HMAC-SHA256. docs/decisions/0009 explains why HMAC, and why each node has its own key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

from watchkeeper.kit import wire
from watchkeeper.model.actions import Result

OrderId = NewType("OrderId", str)

# An agent remembers each order for as long as it could be replayed, so that time is limited.
MAX_LIFETIME = timedelta(hours=24)
DEFAULT_LIFETIME = timedelta(minutes=10)
MAX_ID_LENGTH = 100
MAX_NAME_LENGTH = 253
MAX_ARGUMENTS = 16
MAX_ARGUMENT_LENGTH = 256
# A scan of 16 GPUs is some 60 KiB.
MAX_OUTPUT_BYTES = 256 * 1024


class SealPurpose(StrEnum):
    """Part of the sealed text, so that an order is never accepted as a receipt."""

    ORDER = "order"
    RECEIPT = "receipt"


@dataclass(frozen=True, slots=True)
class OrderKind:
    """One kind of work order. A harmless kind is allowed by default, and a user may order it without a plan."""

    is_harmless: bool
    # Time limit of the work.
    seconds: float
    arguments: frozenset[str] = frozenset()


# Instead of a UUID in the argument `gpu`.
ALL_GPUS = "all"

# One row here, and one function in `agent.orders.order_work` with the same name.
KINDS: Mapping[str, OrderKind] = {
    "profiling_pause": OrderKind(is_harmless=True, seconds=10.0, arguments=frozenset({"seconds", "by"})),
    "profiling_resume": OrderKind(is_harmless=True, seconds=10.0),
    "scan": OrderKind(is_harmless=True, seconds=90.0),
    # Level 1 reads only and puts no load on a GPU; without persistence mode the driver first initialises each GPU.
    "diag_software": OrderKind(is_harmless=True, seconds=180.0),
    # Serial numbers, VBIOS and all counters, for an evidence bundle.
    "describe_gpus": OrderKind(is_harmless=True, seconds=90.0),
    # A test at level 3 loads the GPUs for three minutes, one after the other if power is limited.
    "diag": OrderKind(is_harmless=False, seconds=2700.0, arguments=frozenset({"level"})),
    "reset_gpu": OrderKind(is_harmless=False, seconds=300.0, arguments=frozenset({"gpu"})),
    "apply_mig": OrderKind(is_harmless=False, seconds=540.0, arguments=frozenset({"layout"})),
    "lower_power": OrderKind(
        is_harmless=False, seconds=120.0, arguments=frozenset({"gpu", "percent", "watts", "restore"})
    ),
    "restart_service": OrderKind(is_harmless=False, seconds=180.0, arguments=frozenset({"service"})),
    # Firmware of a server with eight GPUs takes up to a quarter of an hour.
    "reboot": OrderKind(is_harmless=False, seconds=1800.0, arguments=frozenset({"drained"})),
}
HARMLESS = tuple(name for name, kind in KINDS.items() if kind.is_harmless)


@dataclass(frozen=True, slots=True)
class Order:
    """One task for one node. An id that is executed twice has the effect of one execution."""

    id: OrderId
    cluster: str
    node: str
    # A string, not an enum: an agent must be able to report an unknown kind.
    kind: str
    issued_at: datetime
    expires_at: datetime
    nonce: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < len(self.id) <= MAX_ID_LENGTH or not self.id.isascii() or not self.id.isprintable():
            raise ValueError(f"the id needs 1 to {MAX_ID_LENGTH} visible ASCII characters, it has {len(self.id)}")
        for name in (self.cluster, self.node):
            if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable() or " " in name:
                raise ValueError(f"a name needs 1 to {MAX_NAME_LENGTH} visible characters, this one has {len(name)}")
        if len(self.arguments) > MAX_ARGUMENTS:
            raise ValueError(f"{len(self.arguments)} arguments, the limit is {MAX_ARGUMENTS}")
        longest = max((len(text) for text in self.arguments.values()), default=0)
        if longest > MAX_ARGUMENT_LENGTH:
            raise ValueError(f"an argument has {longest} characters, the limit is {MAX_ARGUMENT_LENGTH}")
        if not timedelta(0) < self.expires_at - self.issued_at <= MAX_LIFETIME:
            raise ValueError(f"the lifetime is {self.expires_at - self.issued_at}, the limit is {MAX_LIFETIME}")


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of an order. `text` is for people, `output` is the output of the work."""

    order: OrderId
    at: datetime
    result: Result
    text: str
    output: str = ""


class OrderState(StrEnum):
    """The state of an order. Expired: not fetched or not answered in time."""

    WAITING = "waiting"
    FETCHED = "fetched"
    ANSWERED = "answered"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class TrackedOrder:
    """An order as the hub stores it; `is_proven` False: the receipt has no valid seal of the node."""

    order: Order
    actor: str
    why: str
    fetched_at: datetime | None = None
    receipt: Receipt | None = None
    is_proven: bool = True

    def state(self, now: datetime) -> OrderState:
        if self.receipt is not None:
            return OrderState.ANSWERED
        if now > self.order.expires_at:
            return OrderState.EXPIRED
        return OrderState.WAITING if self.fetched_at is None else OrderState.FETCHED


@dataclass(frozen=True, slots=True)
class Envelope:
    """A text and its seal in hexadecimal."""

    text: str
    seal: str


def node_key(hub_key: bytes, cluster: str, node: str) -> bytes:
    """The key that the hub shares with one node; a compromised node exposes only its own orders."""
    # JSON, so that two different pairs of names never give the same text.
    text = f"watchkeeper node key 1\n{wire.dumps([cluster, node])}"
    return hmac.new(hub_key, text.encode(), hashlib.sha256).hexdigest().encode()


def seal(value: Order | Receipt, key: bytes) -> Envelope:
    text, purpose = wire.dumps(value), SealPurpose.ORDER if isinstance(value, Order) else SealPurpose.RECEIPT
    return Envelope(text, _seal(text, key, purpose=purpose))


def is_sealed(envelope: Envelope, key: bytes, *, purpose: SealPurpose) -> bool:
    # Bytes, because compare_digest refuses non-ASCII strings, which an unknown sender may send.
    return hmac.compare_digest(_seal(envelope.text, key, purpose=purpose).encode(), envelope.seal.encode())


def _seal(text: str, key: bytes, *, purpose: SealPurpose) -> str:
    return hmac.new(key, f"watchkeeper {purpose} 1\n{text}".encode(), hashlib.sha256).hexdigest()
