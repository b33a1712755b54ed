"""The little of protobuf's wire format that Prometheus' messages need: fields and numbers of variable length."""

from __future__ import annotations

from collections.abc import Iterator


def fields(message: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each field as tag, start and end of its bytes; for a varint the start is the number itself."""
    while place < end:
        tag, place = read_varint(message, place)
        wire_type = tag & 7
        if wire_type == 0:
            number, place = read_varint(message, place)
            yield tag, number, place
            continue
        if wire_type == 2:
            length, place = read_varint(message, place)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise IndexError(f"wire type {wire_type} at byte {place}")
        if place + length > end:
            raise IndexError(f"a field of {length} bytes at byte {place} of {end}")
        yield tag, place, place + length
        place += length


def read_varint(message: bytes, place: int) -> tuple[int, int]:
    first = message[place]
    if first < 0x80:
        return first, place + 1
    number, shift = first & 0x7F, 7
    while shift < 70:
        place += 1
        septet = message[place]
        number |= (septet & 0x7F) << shift
        if septet < 0x80:
            return number & (1 << 64) - 1, place + 1
        shift += 7
    raise IndexError(f"a number of more than 10 bytes at byte {place}")


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def zigzag(number: int) -> int:
    """A signed number, which is written with its sign as the last bit."""
    return (number >> 1) ^ -(number & 1)


def signed(number: int) -> int:
    """A signed number of 64 bits, which is written as if it had no sign."""
    return number - (1 << 64) if number >> 63 else number
