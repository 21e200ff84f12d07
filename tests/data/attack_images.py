"""Files that ask a decoder for far more than they give, each built from the format's own rules.

`python -m tests.data.attack_images` prints what each takes to read.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from lessmore.data.images import load_image
from lessmore.errors import ImageError


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def webp_canvas() -> bytes:
    """36 bytes of lossless WebP that claim 16,383 x 3,000 pixels."""
    bits = (16_383 - 1) | (3_000 - 1) << 14
    body = b"\x2f" + struct.pack("<I", bits) + b"\x88\x88\x08\0\0\0\0\0\0\0\0"
    chunk = b"VP8L" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def webp_with_zeros() -> bytes:
    """A small picture and 60 MB behind it that are not part of it."""
    return encoded(Image.new("RGB", (64, 64), "red"), "WEBP", lossless=True) + bytes(60 * 2**20)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, colour: int, data: bytes, *more: bytes) -> bytes:
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def png_of_zeros() -> bytes:
    """47 million transparent pixels in 200 kB."""
    return png(7_000, 6_700, 6, zlib.compress(bytes((7_000 * 4 + 1) * 6_700), 9))


def png_of_chunks() -> bytes:
    return png(1, 1, 0, zlib.compress(b"\0\0"), png_chunk(b"zzZz", b"") * 1_000_000)


def png_of_texts() -> bytes:
    """Compressed comments of 1 MB each, and a picture that is large by itself."""
    text = png_chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000)))
    return png(8_000, 6_000, 2, zlib.compress(bytes((8_000 * 3 + 1) * 6_000), 9), text * 60)


def tiff_of_floats() -> bytes:
    """48 million 32-bit floats, deflated."""
    return encoded(Image.new("F", (8_000, 6_000), 0.5), "TIFF", compression="tiff_adobe_deflate")


def tiff_of_one_strip() -> bytes:
    return encoded(Image.new("RGB", (7_000, 7_000)), "TIFF", compression="tiff_lzw", tiffinfo={278: 7_000})


def directory_of_shared_tags(count: int = 5_000, size: int = 60_000) -> bytes:
    """A TIFF directory whose tags all point to the same bytes."""
    entries = b"".join(struct.pack("<HHII", 1_000 + i, 7, size, 8) for i in range(count))
    return b"II*\0" + struct.pack("<I", 8 + size) + bytes(size) + struct.pack("<H", count) + entries + bytes(4)


def tiff_of_shared_tags() -> bytes:
    return directory_of_shared_tags(60_000, 1_000_000)


def jpeg_of_shared_tags() -> bytes:
    """EXIF data over several segments, which Pillow joins."""
    exif = directory_of_shared_tags(20_000, 300_000)
    parts = [b"Exif\0\0" + exif[i : i + 65_000] for i in range(0, len(exif), 65_000)]
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts)
    plain = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return plain[:2] + segments + plain[2:]


def png_of_shared_tags() -> bytes:
    return png(8, 8, 0, zlib.compress(bytes(72)), png_chunk(b"eXIf", directory_of_shared_tags()))


def png_of_raw_tags() -> bytes:
    """The same EXIF data as a compressed text."""
    exif = directory_of_shared_tags(10_000, 200_000).hex().encode()
    text = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n%d\n" % (len(exif) // 2) + exif)
    return png(8, 8, 0, zlib.compress(bytes(72)), png_chunk(b"zTXt", text))


def jpeg_progressive() -> bytes:
    """48 million pixels whose coefficients are all kept until the last scan."""
    return encoded(Image.new("RGB", (8_000, 6_000), "red"), "JPEG", progressive=True, subsampling=0)


def jpeg_turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(Image.new("RGB", (8_000, 6_000), "red"), "JPEG", exif=exif.tobytes())


def jpeg_of_scans() -> bytes:
    """A progressive picture whose last scan comes again, 50,000 times."""
    whole = encoded(Image.new("RGB", (3_000, 3_000), "red"), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * 50_000 + whole[-2:]


def jpeg_of_segments() -> bytes:
    plain = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return plain[:2] + b"\xff\xee\0\2" * 4_000_000 + plain[2:]


def jpeg_of_padding() -> bytes:
    plain = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return plain[:2] + b"\xff" * 60_000_000 + plain[2:]


def gif_of_comments() -> bytes:
    plain = encoded(Image.new("P", (8, 8)), "GIF")
    place = 13 + 3 * 2 ** ((plain[10] & 7) + 1)
    comment = b"\x21\xfe" + (b"\xff" + bytes([65]) * 255) * 200_000 + b"\0"
    return plain[:place] + comment + plain[place:]


def ppm_with_comment() -> bytes:
    return b"P6\n#" + b"x" * 10_000_000 + b"\n1 1\n255\n\0\0\0"


def ppm_of_text() -> bytes:
    return b"P3 4000 4000 255\n" + b"1 " * 30_000_000


def ppm_of_odd_depth() -> bytes:
    return b"P6 4000 4000 254\n" + bytes(48_000_000)


def bmp_of_runs() -> bytes:
    """A run of one pixel, again and again."""
    head = struct.pack("<IiiHHIIiiII", 40, 4_000, 4_000, 1, 8, 1, 32_000_000, 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + head + bytes(1024) + b"\1\0" * 16_000_000


def grey_of_twelve_bits() -> bytes:
    return encoded(Image.fromarray(np.linspace(0, 4_095, 64, dtype=np.uint16).reshape(8, 8)), "PNG")


ATTACKS: dict[str, Callable[[], bytes]] = {
    make.__name__: make
    for make in (
        webp_canvas,
        webp_with_zeros,
        png_of_zeros,
        png_of_chunks,
        png_of_texts,
        tiff_of_floats,
        tiff_of_one_strip,
        tiff_of_shared_tags,
        jpeg_of_shared_tags,
        png_of_shared_tags,
        png_of_raw_tags,
        jpeg_progressive,
        jpeg_turned,
        jpeg_of_scans,
        jpeg_of_segments,
        jpeg_of_padding,
        gif_of_comments,
        ppm_with_comment,
        ppm_of_text,
        ppm_of_odd_depth,
        bmp_of_runs,
    )
}


def ppm_at_the_limit() -> bytes:
    return b"P6 800 800 254\n" + bytes(800 * 800 * 3)


def text_at_the_limit() -> bytes:
    return b"P3 590 590 255\n" + b"1 " * (590 * 590 * 3)


def runs_at_the_limit() -> bytes:
    return bmp_of_runs()[: 2**21]


def scans_at_the_limit() -> bytes:
    whole = encoded(Image.new("RGB", (6_000, 5_000), "red"), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + whole[last:-2] * 85 + whole[-2:]


def webp_at_the_limit() -> bytes:
    return encoded(Image.new("RGB", (4_500, 4_000), "red"), "WEBP", lossless=True)


def png_at_the_limit() -> bytes:
    return png(6_000, 6_000, 6, zlib.compress(bytes((6_000 * 4 + 1) * 6_000), 9))


ATTACKS |= {
    make.__name__: make
    for make in (
        ppm_at_the_limit,
        text_at_the_limit,
        runs_at_the_limit,
        scans_at_the_limit,
        webp_at_the_limit,
        png_at_the_limit,
    )
}


def main() -> None:
    """Print what each file takes to read, one JSON object per line: MB over what the process held, seconds of one core.

    Each is built and read in a process of its own.
    """
    file = Path(tempfile.mkdtemp()) / "image"
    for name, make in ATTACKS.items():
        in_a_process(lambda make=make: file.write_bytes(make()))
        in_a_process(lambda name=name: print(json.dumps({"name": name, **measured(file)}), flush=True))
    shutil.rmtree(file.parent)


def in_a_process(work: Callable[[], object]) -> None:
    if os.fork() == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.wait()


def measured(file: Path) -> dict[str, object]:
    before, start = peak(), time.process_time()
    try:
        found = str(load_image(file).size)
    except ImageError as error:
        found = str(error).removeprefix(str(file)).strip()
    except Exception as error:
        found = f"traceback: {error!r}"
    return {
        "bytes": file.stat().st_size,
        "mb": peak() - before,
        "s": round(time.process_time() - start, 2),
        "is": found,
    }


def peak() -> int:
    """The largest resident memory of this process so far, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


if __name__ == "__main__":
    main()
