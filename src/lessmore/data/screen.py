"""What an encoded image asks for, read from its headers before a decoder sees it.

Decoders trust their input: a file of 36 bytes can ask for a gigabyte, and one of a few megabytes for minutes. The
checks here read only headers and chunk lengths, and refuse what no honest encoder writes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image

from lessmore.errors import ImageError

MAX_SEGMENTS = 5_000
"""Marker segments of a JPEG, where 64 MB of metadata need 1,000, and blocks of a GIF before its picture."""
MAX_SCANS = 100
"""Scans of a progressive JPEG; each goes over the whole picture, and encoders write about 10."""
MAX_CHUNKS = 100_000
"""Chunks of a PNG."""
MAX_GIF_METADATA = 2**18
MAX_HEADER = 4096
"""Bytes of a PPM header with its comments."""
_TEXTS = 64 * 2**20  # what Pillow lets the compressed texts of a PNG grow to


class Demand(NamedTuple):
    """What decoding takes besides the picture itself."""

    per_pixel: float = 0.0
    """Bytes per pixel."""
    fixed: int = 0
    """Bytes that do not depend on the pixels."""


def screen(data: bytes, name: str) -> bytes:
    """The image's own bytes. Where its container says how many there are, trailing bytes are cut off.

    Args:
        data: The encoded image.
        name: What to call it in the error.

    Raises:
        ImageError: No encoder writes this structure, and a decoder would take long over it.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return data[: struct.unpack_from("<I", data, 4)[0] + 8]
    check = next((check for start, check in _CHECKS.items() if data.startswith(start)), None)
    if check is not None:
        try:
            check(data)
        except _Strange as error:
            raise ImageError(f"{name} {error}; convert the image with another program") from error
        except (struct.error, IndexError):
            pass  # cut short: the decoder says so better
    return data


def demand(data: bytes, image: Image.Image) -> Demand:
    """What Pillow's decoder takes for these bytes.

    Args:
        data: The encoded image.
        image: The same image, opened but not yet decoded.

    Raises:
        ImageError: The header contradicts itself.
    """
    if image.format == "WEBP":
        return webp_demand(data)
    if image.format == "PNG":
        texts = any(kind in data for kind in (b"zTXt", b"iTXt", b"iCCP"))
        return Demand(0.0, len(data) + texts * _TEXTS)
    try:
        if image.format in ("JPEG", "MPO"):
            return Demand(_coefficients(data), len(data))
        if image.format == "TIFF":
            return _tiff_demand(data, image)
    except (_Strange, struct.error, IndexError, TypeError, ValueError) as error:
        raise ImageError(f"the image's header cannot be read ({error}); get a complete copy of it") from error
    return Demand(0.0, len(data))


def webp_demand(data: bytes) -> Demand:
    """What a WebP of these bytes takes: two canvases and the frame."""
    return Demand(12.0, 2 * len(data))


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of the canvas that a WebP asks for, by its first chunk; None if it is no WebP, or cut short."""
    kind, body = data[12:16], data[20:30]
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(body) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF


def _tiff_demand(data: bytes, image: Image.Image) -> Demand:
    """Compressed strips or tiles are decoded whole, before they are put into the picture."""
    if not any(tile[0] == "libtiff" for tile in image.tile):  # type: ignore[attr-defined]
        return Demand(0.0, len(data))
    tags: Any = getattr(image, "tag_v2", {})
    depth = max(tags.get(258, (1,))) / 8 * tags.get(277, 1)
    part = tags.get(322, 0) * tags.get(323, 0) or min(tags.get(278, image.height), image.height) * image.width
    coefficients = 6.0 if "jpeg" in str(image.info.get("compression")) else 0.0
    return Demand(coefficients, 2 * len(data) + int(depth * part))


class _Strange(Exception):
    """A structure that no encoder writes."""


class _Segment(NamedTuple):
    marker: int
    body: bytes
    fill: int
    """Bytes between the previous segment and this one's marker."""


_MARKER = re.compile(rb"\xff+([\x01-\xcf\xd8-\xfe])")
_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}

_PROGRESSIVE = {0xC2, 0xC6, 0xCA, 0xCE}


def _segments(data: bytes) -> list[_Segment]:
    """Marker segments of a JPEG up to its end."""
    found, place = [], 2
    while match := _MARKER.search(data, place):
        marker = match[1][0]
        if marker == 0xD9:
            break
        length = 0 if marker in (0x01, 0xD8) else struct.unpack_from(">H", data, match.end())[0]
        found.append(_Segment(marker, data[match.end() + 2 : match.end() + length], match.start() - place))
        place = match.end() + length
        if len(found) > MAX_SEGMENTS:
            raise _Strange(f"has more than {MAX_SEGMENTS:,} segments")
        if len(match[0]) > MAX_HEADER:
            raise _Strange("is padded between its segments")
    return found


def _check_jpeg(data: bytes) -> None:
    segments = _segments(data)
    if sum(segment.marker == 0xDA for segment in segments) > MAX_SCANS:
        raise _Strange(f"has more than {MAX_SCANS} scans")
    exif = b"".join(s.body[6:] for s in segments if s.marker == 0xE1 and s.body.startswith(b"Exif\0\0"))
    for block in (exif, *(s.body[4:] for s in segments if s.marker == 0xE2 and s.body.startswith(b"MPF\0"))):
        check_tags(block)


def _coefficients(data: bytes) -> float:
    """Bytes per pixel that libjpeg keeps where the picture comes in several scans: two for each coefficient."""
    segments = _segments(data)
    frame = next((s for s in segments if s.marker in _FRAMES), None)
    scan = next((s for s in segments if s.marker == 0xDA), None)
    if (
        frame is None
        or scan is None
        or (frame.marker not in (0xC2, 0xC6, 0xCA, 0xCE) and frame.body[5] == scan.body[0])
    ):
        return 0.0
    factors = [divmod(frame.body[i], 16) for i in range(7, 6 + 3 * frame.body[5], 3)]
    largest = max(h for h, _ in factors) * max(v for _, v in factors)
    return 2.0 * sum(h * v for h, v in factors) / max(1, largest)


def check_tags(data: bytes) -> None:
    """Refuse a TIFF directory (or EXIF data) whose tags together claim far more bytes than there are.

    Tags may share their bytes, and each is read into memory by itself.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None or len(data) < 8:
        return
    big = struct.unpack_from(f"{order}H", data, 2)[0] == 43
    place = struct.unpack_from(f"{order}{'Q' if big else 'I'}", data, 8 if big else 4)[0]
    entry, head = (20, 8) if big else (12, 2)
    count = struct.unpack_from(f"{order}{'Q' if big else 'H'}", data, place)[0]
    table = data[place + head : place + head + entry * min(count, 2**16)]
    table = table[: len(table) // entry * entry]
    claimed = sum(
        number * _SIZES.get(kind, 8)
        for _, kind, number in struct.iter_unpack(f"{order}HHQ8x" if big else f"{order}HHI4x", table)
        if number * _SIZES.get(kind, 8) <= len(data)  # larger ones cannot be read at all
    )
    if claimed > 4 * len(data) + MAX_HEADER:
        raise _Strange("has tags that claim more than the file holds")


_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 7: 1, 8: 2, 9: 4, 11: 4}


def _check_png(data: bytes) -> None:
    place = 8
    for _ in range(MAX_CHUNKS):
        if data[place + 4 : place + 8] in (b"IEND", b""):
            return
        place += 12 + struct.unpack_from(">I", data, place)[0]
    raise _Strange(f"has more than {MAX_CHUNKS:,} chunks")


def _check_gif(data: bytes) -> None:
    """Extensions before the first picture; comments among them are joined in quadratic time."""
    flags = data[10]
    start = place = 13 + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0)
    blocks = 0
    while data[place] == 0x21:
        place += 2
        while data[place]:
            place += 1 + data[place]
            blocks += 1
            if place - start > MAX_GIF_METADATA or blocks > MAX_SEGMENTS:
                raise _Strange("has more metadata than any program writes")
        place += 1


_PPM = re.compile(rb"P[1-7fF](?:(?:\s|#[^\r\n]*[\r\n])+[-+.\w]+){2,3}\s")


def _check_ppm(data: bytes) -> None:
    if not _PPM.match(data[:MAX_HEADER]):
        raise _Strange(f"has no complete header in its first {MAX_HEADER:,} bytes")


_CHECKS: dict[bytes, Callable[[bytes], None]] = {
    b"\xff\xd8": _check_jpeg,
    b"\x89PNG": _check_png,
    b"GIF8": _check_gif,
    b"II": check_tags,
    b"MM": check_tags,
    **{f"P{kind}".encode(): _check_ppm for kind in "1234567fF"},
}
