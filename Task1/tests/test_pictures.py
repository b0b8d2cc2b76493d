"""From a picture file to an array: modes, orientation, damage; and the cache of decoded pictures."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image

import pictures
from folders import find_pictures
from pictures import decode_all, read_picture
from utils import UserError, write_file

RED, GREEN, BLUE, BLACK, WHITE = (250, 0, 0), (0, 250, 0), (0, 0, 250), (0, 0, 0), (255, 255, 255)


@pytest.fixture
def corners() -> Image.Image:
    """8x8: red, green; blue, black."""
    colours = np.array([[RED, GREEN], [BLUE, BLACK]], np.uint8)
    return Image.fromarray(colours.repeat(4, axis=0).repeat(4, axis=1))


def corners_of(array: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(array[row, column].tolist()) for row in (0, -1) for column in (0, -1)]


# ---- modes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tif", "webp"])
def test_a_picture_of_the_right_size_is_read_as_it_is(tmp_path, suffix):
    array = np.random.default_rng(0).integers(256, size=(8, 8, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / f"a.{suffix}", lossless=True)
    read = read_picture(tmp_path / f"a.{suffix}", 8)
    assert read.dtype == np.uint8 and np.array_equal(read, array)
    grey = read_picture(tmp_path / f"a.{suffix}", 8, channels=1)
    assert grey.shape == (8, 8, 1) and np.array_equal(grey[..., 0], Image.fromarray(array).convert("L"))


def test_every_mode_becomes_three_channels_of_the_right_colour(tmp_path, corners):
    grey = corners.convert("L")
    tones = [(tone,) * 3 for tone in (grey.getpixel((0, 0)), grey.getpixel((7, 0)), grey.getpixel((0, 7)), 0)]
    for mode, name, wanted in (("L", "l.png", tones), ("LA", "la.png", tones), ("RGBA", "rgba.png", None),
                               ("P", "p.png", None), ("1", "1.png", [BLACK, WHITE, BLACK, BLACK]),
                               ("CMYK", "cmyk.tif", None)):
        picture = corners.convert(mode, dither=Image.Dither.NONE)
        assert picture.mode == mode
        picture.save(tmp_path / name)
        np.testing.assert_allclose(corners_of(read_picture(tmp_path / name, 8)), wanted or [RED, GREEN, BLUE, BLACK],
                                   atol=6, err_msg=mode)
    corners.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    np.testing.assert_allclose(read_picture(tmp_path / "cmyk.jpg", 8)[1, 1], RED, atol=12)


def test_white_shows_behind_transparent_pixels(tmp_path):
    for alpha, wanted in ((0, WHITE), (255, RED), (128, (252, 127, 127))):
        Image.new("RGBA", (8, 8), (*RED, alpha)).save(tmp_path / "rgba.png")
        np.testing.assert_allclose(read_picture(tmp_path / "rgba.png", 8)[3, 3], wanted, atol=1)
    Image.new("LA", (8, 8), (0, 0)).save(tmp_path / "la.png")
    assert (read_picture(tmp_path / "la.png", 8) == 255).all()
    Image.new("RGB", (8, 8), RED).save(tmp_path / "key.png", transparency=RED)  # one colour is transparent
    assert (read_picture(tmp_path / "key.png", 8) == 255).all()
    palette = Image.new("P", (8, 8))
    palette.putpalette([*RED, *GREEN])
    palette.putpixel((0, 0), 1)
    palette.save(tmp_path / "p.png", transparency=bytes([0, 255]))
    assert corners_of(read_picture(tmp_path / "p.png", 8)) == [GREEN, WHITE, WHITE, WHITE]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_greys_of_16_bits_are_scaled(tmp_path, suffix):
    for value, wanted in ((0, 0), (257, 1), (15000, 58), (45000, 175), (65535, 255)):
        Image.fromarray(np.full((8, 8), value, np.uint16)).save(tmp_path / f"a.{suffix}")
        assert (read_picture(tmp_path / f"a.{suffix}", 8) == wanted).all()
    (tmp_path / "a.pgm").write_bytes(b"P5 8 8 4095\n" + np.full((8, 8), 2048, ">u2").tobytes())
    assert (read_picture(tmp_path / "a.pgm", 8) == 128).all()


@pytest.mark.parametrize("array, words", [(np.full((8, 8), 2**20, np.int32), "more than 16 bits"),
                                          (np.full((8, 8), -1, np.int32), "more than 16 bits"),
                                          (np.full((8, 8), 0.5, np.float32), "floating-point")])
def test_greys_whose_range_is_not_known_are_refused(tmp_path, array, words):
    Image.fromarray(array).save(tmp_path / "a.tif")
    with pytest.raises(UserError, match=f"a.tif cannot be read as a picture: .*{words}"):
        read_picture(tmp_path / "a.tif", 8)


def test_odd_files_are_read_without_a_warning(tmp_path, corners):
    corners.save(tmp_path / "odd.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1", quality=100)
    corners.quantize(4).save(tmp_path / "palette.png", transparency=bytes([255] * 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("odd.jpg", "palette.png"):
            np.testing.assert_allclose(read_picture(tmp_path / name, 8)[1, 1], RED, atol=12)
        many = tmp_path / "many" / "a"
        many.mkdir(parents=True)
        for index in range(40):
            shutil.copy(tmp_path / "odd.jpg", many / f"{index}.jpg")
        decode_all(find_pictures(tmp_path / "many"), 8, None, progress=False)
        assert not caught
        warnings.warn("heard", stacklevel=1)  # the threads gave the filters back
        assert len(caught) == 1


# ---- orientation and size ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif", "webp"])
def test_pictures_are_turned_upright(tmp_path, corners, suffix):
    turned = {1: None, 2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
              4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90,
              7: Image.Transpose.TRANSVERSE, 8: Image.Transpose.ROTATE_270}
    for orientation, undone in turned.items():  # how the camera lay, and what brings the upright picture there
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture = corners.resize((32, 32), Image.Resampling.NEAREST)
        picture = picture if undone is None else picture.transpose(undone)
        picture.save(tmp_path / f"a.{suffix}", exif=exif)
        read = read_picture(tmp_path / f"a.{suffix}", 32)
        np.testing.assert_allclose(corners_of(read), [RED, GREEN, BLUE, BLACK], atol=30, err_msg=str(orientation))


def test_the_middle_of_the_shorter_side_is_kept(tmp_path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, :10], wide[:, 10:20], wide[:, 20:] = RED, GREEN, BLUE
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "high.png")
    for name in ("wide.png", "high.png"):
        for size in (5, 10, 20):
            read = read_picture(tmp_path / name, size)
            assert read.shape == (size, size, 3)
            assert (read[1:-1, 1:-1] == GREEN).all()  # the edge mixes with what was cut off
    Image.new("RGB", (3000, 1), RED).save(tmp_path / "line.png")
    assert (read_picture(tmp_path / "line.png", 8) == RED).all()


def test_pictures_are_made_smaller_without_aliasing(tmp_path):
    checkers = (np.indices((64, 64)).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(checkers).save(tmp_path / "a.png")
    assert np.abs(read_picture(tmp_path / "a.png", 16).astype(int) - 127).max() <= 2


# ---- what cannot be read -----------------------------------------------------------------------------------------


def jpeg(tmp_path: Path) -> bytes:
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.jpg")
    return (tmp_path / "whole.jpg").read_bytes()


@pytest.mark.parametrize("content", [lambda whole: b"", lambda whole: whole[:len(whole) // 2],
                                     lambda whole: whole[:-200], lambda whole: b"text, no picture",
                                     lambda whole: bytes(4096), lambda whole: b"P6 0 0 255\n"])
def test_damaged_files_are_refused_with_their_path(tmp_path, content):
    path = tmp_path / "bad \u732b.jpg"
    path.write_bytes(content(jpeg(tmp_path)))
    with pytest.raises(UserError) as caught:
        read_picture(path, 8)
    assert str(caught.value).startswith(f"{path} cannot be read as a picture: it is damaged, cut off")


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path):
    with pytest.raises(UserError, match="none.png cannot be read as a picture: No such file"):
        read_picture(tmp_path / "none.png", 8)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match="folder.png cannot be read as a picture: .*check its path"):
        read_picture(tmp_path / "folder.png", 8)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    Image.new("1", (100, 100)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4999)
    with pytest.raises(UserError, match="bomb.png cannot be read as a picture: it has more than 9,998 pixels"):
        read_picture(tmp_path / "bomb.png", 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)  # up to twice that, Pillow only warns
    assert read_picture(tmp_path / "bomb.png", 8).shape == (8, 8, 3)


# ---- the cache ---------------------------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """Decodes a split, with the cache beside it, and tells how many files were opened as pictures."""
    opened = []
    open_picture = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or open_picture(path))

    def decode(root: Path, size: int = 16) -> tuple[np.ndarray, int]:
        opened.clear()
        array = decode_all(find_pictures(root), size, root.parent / pictures.CACHE_FOLDER / "train.uint8", False)
        count = len(opened)
        assert np.array_equal(array, decode_all(find_pictures(root), size, None, False))
        return array, count

    return decode


def test_a_second_start_decodes_nothing(tree, decoded):
    first, opened = decoded(tree / "train")
    assert opened == 24 and first.shape == (24, 3, 16, 16) and first[:, 0, 0, 0].tolist()[:7] == [*range(20, 26), 80]
    again, opened = decoded(tree / "train")
    assert opened == 0 and np.array_equal(again, first)


def test_a_tree_that_was_moved_keeps_its_cache(tree, decoded):
    decoded(tree / "train")
    assert decoded(tree.rename(tree.with_name("moved")) / "train")[1] == 0


def swap_classes(train: Path) -> None:
    (train / "a").rename(train / "x")
    (train / "b").rename(train / "a")
    (train / "x").rename(train / "b")


def overwrite_with_same_length_and_time(train: Path) -> None:
    old, other = train / "a" / "0.png", train / "d" / "1.png"
    marks, content = old.stat(), other.read_bytes()
    old.write_bytes(content + bytes(marks.st_size - len(content)))
    assert old.stat().st_size == marks.st_size
    os.utime(old, ns=(marks.st_atime_ns, marks.st_mtime_ns))


def replace_by_link(train: Path) -> None:
    (train / "a" / "0.png").unlink()
    (train / "a" / "0.png").symlink_to(train / "d" / "0.png")


@pytest.mark.parametrize("change", [
    swap_classes, overwrite_with_same_length_and_time, replace_by_link,
    lambda train: (train / "a" / "0.png").unlink(),
    lambda train: shutil.copy(train / "d" / "0.png", train / "a" / "00.png"),
    lambda train: (train / "a" / "0.png").rename(train / "a" / "9.png"),
    lambda train: (train / "a" / "0.png").rename(train / "b" / "00.png"),
    lambda train: (train / "a").rename(train / "z"),
])
def test_a_change_of_the_files_is_seen(tree, decoded, change):
    decoded(tree / "train")
    change(tree / "train")
    assert decoded(tree / "train")[1] >= 23  # and `decoded` compares with what has no cache
    assert decoded(tree / "train")[1] == 0


def test_another_name_is_seen_even_if_the_file_system_keeps_all_times(tree):
    files = find_pictures(tree / "train")
    before = pictures._fingerprint(files, 16)
    files.paths[:2] = reversed(files.paths[:2])
    assert pictures._fingerprint(files, 16) != before


def test_another_size_or_decoder_is_seen(tree, decoded, monkeypatch):
    decoded(tree / "train", 16)
    assert decoded(tree / "train", 8)[1] == 24
    for owner, name in ((pictures, "DECODER_VERSION"), (PIL, "__version__")):
        monkeypatch.setattr(owner, name, "other")
        assert decoded(tree / "train", 8)[1] == 24


@pytest.mark.parametrize("content", [lambda whole: b"", lambda whole: whole[:-1], lambda whole: whole + b"x",
                                     lambda whole: whole[:20], lambda whole: bytes(32) + whole[32:]])
def test_a_damaged_cache_is_made_anew(tree, decoded, content):
    decoded(tree / "train")
    cache = tree / pictures.CACHE_FOLDER / "train.uint8"
    whole = cache.read_bytes()
    cache.write_bytes(content(whole))
    assert decoded(tree / "train")[1] == 24
    assert cache.read_bytes() == whole


def test_runs_that_decode_at_once_do_not_share_a_file(tree, monkeypatch):
    """A second run writes the cache while the first is about to put its own in place."""
    files, cache = find_pictures(tree / "train"), tree / "cache" / "train.uint8"
    replace, paths = os.replace, []

    def interfere(source, target):
        paths.append(source)
        if len(paths) == 1:
            decode_all(files, 8, cache, progress=False)
        replace(source, target)

    monkeypatch.setattr(os, "replace", interfere)
    decode_all(files, 8, cache, progress=False)
    assert len(set(paths)) == len(paths) == 4
    assert os.listdir(cache.parent) == ["train.uint8"]
    assert cache.stat().st_size == 32 + 24 * 3 * 8 * 8


def test_a_cache_that_cannot_be_written_is_done_without(tree, decoded, capsys):
    (tree / pictures.CACHE_FOLDER).write_text("a file where the folder should be", encoding="ascii")
    for _ in range(2):
        assert decoded(tree / "train")[1] == 24
        said = capsys.readouterr().err
        assert said.startswith("note: ") and len(said.splitlines()) == 1 and "decoded anew" in said


def test_a_disk_that_became_read_only_is_done_without(tree, decoded, capsys, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match="cannot be written: Read-only file system"):
        write_file(tree / "file", b"")
    assert decoded(tree / "train")[1] == 24
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_full_disk_leaves_no_half_cache(tree, decoded, capsys, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert decoded(tree / "train")[1] == 24
    assert "decoded anew" in capsys.readouterr().err
    assert not list((tree / pictures.CACHE_FOLDER).iterdir())


def test_what_a_killed_process_left_of_a_cache_is_removed_and_what_another_writes_stays(tree, decoded):
    folder = tree / pictures.CACHE_FOLDER
    folder.mkdir()
    left, fresh = [".train.uint8.0a1b2c3d.tmp", "train.uint8.4e5f6071"], [".train.uint8.89abcdef.tmp"]
    for name in (*left, *fresh):
        (folder / name).write_bytes(b"half")
    for name in left:
        os.utime(folder / name, (0, 0))
    decoded(tree / "train")
    assert sorted(os.listdir(folder)) == [*fresh, "train.uint8"]


def test_the_first_damaged_picture_ends_the_decoding(tree, decoded):
    for name in ("b/3.png", "c/1.png"):
        (tree / "train" / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"train.b.3\.png cannot be read"):
        decoded(tree / "train")
    assert not (tree / pictures.CACHE_FOLDER).exists()
