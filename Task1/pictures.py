"""From a picture file to an array, whatever its mode; and a cache, so that small pictures are decoded once."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from folders import PictureFiles
from utils import UserError, write_file

CACHE_FOLDER = ".decoded"
DECODER_VERSION = 1  # part of the cache's fingerprint: raise it when `read_picture` changes what it returns
DECODING_THREADS = 4  # Pillow gives up the interpreter's lock while it decodes


def read_picture(path: str | Path, size: int, channels: int = 3) -> np.ndarray:
    """Read a picture as uint8 (size, size, channels); `channels` is 1 or 3.

    It is turned upright (EXIF); 16-bit greys are scaled to 8 bits; transparent pixels show white behind them; palettes,
    greys and CMYK become RGB. If it is not size x size, its shorter side is brought to `size` (bilinear, antialiased)
    and the middle is cut out. Raises `UserError` with the path if the file cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd but readable files; unreadable ones raise
            with Image.open(path) as file:
                file.load()
                picture = _eight_bit(ImageOps.exif_transpose(file))
    except Exception as error:  # Pillow's decoders raise many kinds for a damaged file
        reason = "it is damaged, cut off or of an unknown kind" if not isinstance(error, UserError) else str(error)
        raise UserError(f"{os.fspath(path)} cannot be read as a picture: {reason}; repair or remove it") from None
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (size, size):
        picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(size, size, channels)


def _eight_bit(picture: Image.Image) -> Image.Image:
    """An opaque picture of 8 bits a channel."""
    if picture.mode.startswith("I"):
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise UserError("it has more than 16 bits a pixel")
        return Image.fromarray((values / 257).round().astype(np.uint8))
    if picture.mode == "F":
        raise UserError("its pixels are floating-point numbers")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture


def decode_all(files: PictureFiles, size: int, cache: Path | None, progress: bool) -> np.ndarray:
    """All pictures of a split as uint8 (N, 3, size, size), from `cache` if it is of these very files."""
    fingerprint = _fingerprint(files, size)
    shape = (len(files.paths), 3, size, size)
    pictures = _read_cache(cache, fingerprint, shape) if cache else None
    if pictures is None:
        pictures = np.empty(shape, np.uint8)
        with ThreadPoolExecutor(DECODING_THREADS) as pool:
            decoded = pool.map(lambda path: read_picture(path, size).transpose(2, 0, 1), files.paths, chunksize=64)
            bar = tqdm(decoded, f"decoding {files.root.name}", len(files.paths), leave=False, unit="picture",
                       disable=None if progress else True)
            for index, picture in enumerate(bar):
                pictures[index] = picture
        if cache:
            _write_cache(cache, fingerprint, pictures)
    return pictures


def _fingerprint(files: PictureFiles, size: int) -> bytes:
    """32 bytes that change whenever a file is added, removed, renamed, moved or written to.

    A write that keeps size and time (`touch -r`) shows in the inode's change time, which no program can set.
    """
    digest = hashlib.sha256(f"{DECODER_VERSION} {size} {files.classes}".encode("utf-8", "surrogateescape"))
    root_length = len(os.fspath(files.root))  # a tree that was moved as a whole keeps its cache
    for path, marks in zip(files.paths, files.fingerprints, strict=True):
        digest.update(os.fsencode(path[root_length:]))
        digest.update(repr(marks).encode("ascii"))
    return digest.digest()


def _read_cache(cache: Path, fingerprint: bytes, shape: tuple[int, ...]) -> np.ndarray | None:
    """The cached array, or None if there is none of this fingerprint and of the right length."""
    try:
        content = np.fromfile(cache, np.uint8)
    except OSError:
        return None
    mark = len(fingerprint)
    if content[:mark].tobytes() != fingerprint or content.size != mark + int(np.prod(shape)):
        return None
    return content[mark:].reshape(shape)


def _write_cache(cache: Path, fingerprint: bytes, pictures: np.ndarray) -> None:
    """Keep the array: the fingerprint, then its bytes. Where that is impossible the run goes on without."""
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        buffer.write(fingerprint)
        buffer.write(pictures.data)
        write_file(cache, buffer.getvalue())
    except (OSError, UserError):
        print(f"note: the decoded pictures cannot be kept in {cache.parent}; they are decoded anew at each start",
              file=sys.stderr)
