"""Read and write the part of protobuf's wire format that Prometheus' messages use: fields and varints."""

from __future__ import annotations

from collections.abc import Iterator

# The tag of field number 1; no field has the number 0.
FIRST_TAG = 8


def read_fields(
    message: bytes, position: int, end: int, *, max_fields: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield each field as its tag, start and end; for a varint, the start is the value itself.

    A message of the smallest fields, of two bytes each, takes seconds for each 10 MiB: limit the fields of a stranger.
    """
    remaining = -1 if max_fields is None else max_fields
    while position < end:
        if remaining == 0:
            raise IndexError(f"more than {max_fields} fields at byte {position}")
        remaining -= 1
        tag, position = read_varint(message, position)
        wire_type = tag & 7
        if tag < FIRST_TAG:
            raise IndexError(f"field number 0 at byte {position}")
        if wire_type == 0:
            number, position = read_varint(message, position)
            yield tag, number, position
            continue
        if wire_type == 2:
            length, position = read_varint(message, position)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise IndexError(f"wire type {wire_type} at byte {position}")
        if position + length > end:
            raise IndexError(f"a field of {length} bytes at byte {position} of {end}")
        yield tag, position, position + length
        position += length


def read_varint(message: bytes, position: int) -> tuple[int, int]:
    first = message[position]
    if first < 0x80:
        return first, position + 1
    number, shift = first & 0x7F, 7
    while shift < 70:
        position += 1
        septet = message[position]
        number |= (septet & 0x7F) << shift
        if septet < 0x80:
            return number & (1 << 64) - 1, position + 1
        shift += 7
    raise IndexError(f"a number of more than 10 bytes at byte {position}")


def encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def decode_zigzag(number: int) -> int:
    """The signed number of a zigzag encoding, where the last bit is the sign."""
    return (number >> 1) ^ -(number & 1)


def to_signed(number: int) -> int:
    """The signed number of 64 bits that was read as unsigned."""
    return number - (1 << 64) if number >> 63 else number
