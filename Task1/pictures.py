"""From a picture file to an array, whatever its mode; and a cache, so that small pictures are decoded once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps

from folders import PictureFiles
from utils import UserError, progress_bar, write_file

CACHE_FOLDER = ".decoded"
LONGEST_WRITE = 3600  # seconds that nobody needs to write a cache
DECODER_VERSION = 1  # part of the cache's fingerprint: raise it when `read_picture` changes what it returns
DECODING_THREADS = 4  # Pillow gives up the interpreter's lock while it decodes


def read_picture(path: str | Path, size: int, channels: int = 3) -> np.ndarray:
    """Read a picture as uint8 (size, size, channels); `channels` is 1 or 3.

    It is turned upright (EXIF); 16-bit greys are scaled to 8 bits; transparent pixels show white behind them; palettes,
    greys and CMYK become RGB. If it is not size x size, its shorter side is brought to `size` (bilinear, antialiased)
    and the middle is cut out. Raises `UserError` with the path if the file cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd but readable files; unreadable ones raise
        return _decode(path, size, channels)


def _decode(path: str | Path, size: int, channels: int = 3) -> np.ndarray:
    """`read_picture` without its filter of warnings, which only one thread at a time can set."""
    try:
        with Image.open(path) as file:
            file.load()
            picture = _eight_bit(ImageOps.exif_transpose(file)).convert("L" if channels == 1 else "RGB")
        if picture.size != (size, size):
            picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    except Exception as error:  # Pillow's decoders raise many kinds for a damaged file
        raise UserError(f"{os.fspath(path)} cannot be read as a picture: {_fault(error)}") from None
    return np.array(picture).reshape(size, size, channels)  # a copy: Pillow's memory is read-only


def _fault(error: Exception) -> str:
    """What is wrong with a file, and what to do."""
    if isinstance(error, UserError):
        return f"{error}; convert or remove it"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than {2 * Image.MAX_IMAGE_PIXELS:,} pixels; make it smaller or remove it"
    if isinstance(error, OSError) and error.strerror:  # the system's error, not one of Pillow's
        return f"{error.strerror}; check its path and permissions"
    return "it is damaged, cut off or of an unknown kind; repair or remove it"


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
        with warnings.catch_warnings(), ThreadPoolExecutor(DECODING_THREADS) as pool:
            warnings.simplefilter("ignore")  # as in `read_picture`
            decoded = pool.map(lambda path: _decode(path, size).transpose(2, 0, 1), files.paths)
            try:
                with progress_bar(f"decoding {files.root.name}", len(files.paths), "picture", shown=progress) as bar:
                    for index, picture in enumerate(decoded):
                        pictures[index] = picture
                        bar.update()
            finally:
                pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C nobody waits for the others
        if cache:
            _write_cache(cache, fingerprint, pictures)
    return pictures


def _fingerprint(files: PictureFiles, size: int) -> bytes:
    """32 bytes that change whenever a file is added, removed, renamed, moved or written to, and with the decoder.

    A write that keeps size and time (`touch -r`) shows in the inode's change time, which no program can set
    (Windows has none: there such a write goes unnoticed).
    """
    decoder = f"{DECODER_VERSION} {PIL.__version__} {size} {files.classes}"
    digest = hashlib.sha256(decoder.encode("utf-8", "surrogateescape"))
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
    # Several runs may decode the same tree at once: each writes a file of its own, and the last one stays.
    own = cache.with_name(f"{cache.name}.{secrets.token_hex(4)}")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        for left in cache.parent.glob(f"*{cache.name}.*"):  # by a process that was killed while it wrote
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                if time.time() - left.stat().st_mtime > LONGEST_WRITE:
                    left.unlink()
        write_file(own, b"".join((fingerprint, pictures.data)))
        os.replace(own, cache)
    except (OSError, UserError):
        with contextlib.suppress(OSError):  # a read-only disk refuses that too
            own.unlink()
        print(f"note: {cache} cannot be written; the pictures are decoded anew at each start", file=sys.stderr)
