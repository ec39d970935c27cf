"""Images as people have them: of any size, turned, deep, transparent, nested, beside rubbish, and some broken."""

import io

import numpy as np
import pytest
from PIL import Image

from pfeddsh.data import datasets, decode, images
from pfeddsh.data.images import Fit
from pfeddsh.errors import UserError

LENET = (3, 32, 32)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDDSH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def pets(tmp_path):
    """Ten cats and ten dogs in train/ and test/, colour, 24x24; tests add to the cats."""
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            for at in range(5):
                Image.fromarray(noise(24, 24, 3, seed=at)).save(folder / f"{at}.png")
    return tmp_path / "pets"


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(image, kind="PNG", shape=None, **options):
    blob = encoded(image, kind, **options)
    return images.decode(blob, Fit(shape or images.probe(blob)))[0]


def added(pets, name, image, **options):
    """The pixels of one more cat, whose name sorts first."""
    path = pets / "train" / "cat" / f"0{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    (pets / "train" / "cat" / "0.png").unlink(missing_ok=True)
    return datasets.load(str(pets)).x_train[0]


def archive(path, x, y=(0, 1, 0, 1), **more):
    np.savez(path, x_train=x, y_train=np.array(y), x_test=x, y_test=np.array(y), **more)
    return str(path)


# Sizes


def test_known_data_keep_their_own_shape():
    data = datasets.load("digits")
    assert data.shape == (1, 8, 8) and data.mean.shape == (1,) and data.x_train.max() == 255
    assert data.notes == ("1797 images of 1x8x8 (channels x height x width), as they are",)


def test_digits_for_lenet_are_the_bits_they_have_always_been():
    data = datasets.load("digits", shape=LENET)
    assert data.fingerprint == "94e8f2a4c6586a15159fab1adf584cfd528c80d183a24e6457ea157472d85ecc"
    (note,) = data.notes
    assert note.endswith("fitted to 3x32x32 (channels x height x width): resized, grey repeated in three channels")


@pytest.mark.parametrize("shape", [(9, 30), (30, 9, 3), (224, 224, 3), (28, 28)])
def test_arrays_keep_size_and_channels(tmp_path, shape):
    x = noise(4, *shape)
    data = datasets.load(archive(tmp_path / "mine.npz", x))
    expected = x[:, None] if len(shape) == 2 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(data.x_train, expected) and data.x_train.dtype == np.uint8


def test_the_copies_of_two_shapes_lie_side_by_side(tmp_path):
    path = archive(tmp_path / "mine.npz", noise(4, 28, 28))
    own, fitted, cut = (datasets.load(path, shape=shape) for shape in (None, LENET, 14))
    assert (own.shape, fitted.shape, cut.shape) == ((1, 28, 28), LENET, (1, 14, 14))
    assert len({own.fingerprint, fitted.fingerprint, cut.fingerprint}) == 3


@pytest.mark.parametrize("size", [(64, 64), (32, 32), (28, 28), (8, 8)])
@pytest.mark.parametrize("resize", ["pad", "crop"])
def test_squares_are_simply_resized(size, resize):
    image = Image.fromarray(noise(*size, 3))
    expected = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.array_equal(Fit(LENET, resize)(image), expected)


def test_padding_keeps_the_whole_image_and_its_proportions():
    image = Image.new("RGB", (64, 16), (200, 100, 50))
    fitted = Fit(LENET, "pad")(image)
    assert (fitted[:, 12:20] == np.array([200, 100, 50])[:, None, None]).all()
    assert not fitted[:, :12].any() and not fitted[:, 20:].any()


def test_cropping_keeps_the_middle():
    pixels = np.zeros((16, 64), np.uint8)
    pixels[:, 24:40] = 255
    assert (Fit((1, 32, 32), "crop")(Image.fromarray(pixels))[:, :, 2:-2] > 200).all()
    assert Fit((1, 32, 32), "pad")(Image.fromarray(pixels)).mean() < 100


def test_padding_or_cropping_is_said(tmp_path):
    path = archive(tmp_path / "mine.npz", noise(4, 20, 40, 3))
    pad, crop = (datasets.load(path, shape=LENET, resize=resize) for resize in ("pad", "crop"))
    assert pad.notes[0].endswith("resized, padded with black") and crop.notes[0].endswith("resized, cut at the sides")
    assert pad.fingerprint != crop.fingerprint


def test_colour_is_made_grey_for_a_model_that_wants_it(tmp_path):
    x = np.full((4, 28, 28, 3), (255, 0, 0), np.uint8)
    data = datasets.load(archive(tmp_path / "mine.npz", x), shape=(1, 28, 28))
    assert (data.x_train == 76).all() and "colour made grey" in data.notes[0]


def test_mixed_sizes_get_their_median_and_colour_if_any_has(pets):
    for at, size in enumerate([(10, 90), (90, 10), (24, 24), (70, 80)]):
        Image.fromarray(noise(*size)).save(pets / "train" / "dog" / f"other{at}.png")
    data = datasets.load(str(pets))
    assert data.shape == (3, 24, 24)
    assert "24 images of 5 shapes, most often 3x24x24 fitted to 3x24x24" in data.notes[0]
    assert "median" in data.notes[0]


def test_photographs_do_not_fill_the_disk(pets):
    for split in ("train", "test"):
        for file in (pets / split).glob("*/*.png"):
            Image.new("RGB", (800, 400)).save(file)
    data = datasets.load(str(pets))
    assert data.shape == (3, 128, 256) and "the largest if image_size is not set: resized" in data.notes[0]
    assert datasets.load(str(pets), shape=300).shape == (3, 300, 300)


def test_processes_measure_and_fit_the_same_as_one(pets, monkeypatch):
    Image.fromarray(noise(30, 50)).save(pets / "train" / "dog" / "wide.png")
    alone = datasets.load(str(pets))
    monkeypatch.setattr(decode, "WORTH_A_PROCESS", 5)
    monkeypatch.setattr(decode, "_cores", lambda: 2)
    monkeypatch.setattr(decode, "_write", None)  # the processes must do it
    monkeypatch.setenv("PFEDDSH_CACHE", str(pets.parent / "another"))
    shared = datasets.load(str(pets))
    assert shared.fingerprint == alone.fingerprint and shared.notes == alone.notes


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 0, 8)])
def test_a_shape_no_image_can_have_is_refused(shape):
    with pytest.raises(UserError, match=f"fitted to {'x'.join(map(str, shape))}"):
        datasets.load("digits", shape=shape)


# Oddities


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_lies_as_its_exif_says(orientation):
    upright = np.zeros((8, 16, 3), np.uint8)
    upright[:4, :8], upright[:4, 8:], upright[4:, :8] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    turns = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
             5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
             8: Image.Transpose.ROTATE_270}  # fmt: skip
    image = Image.fromarray(upright)
    stored = image.transpose(turns[orientation]) if orientation > 1 else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("PNG", "TIFF"):
        assert np.array_equal(decoded(stored, kind, exif=exif), upright.transpose(2, 0, 1)), kind
    assert np.abs(decoded(stored, "JPEG", exif=exif, quality=95, subsampling=0).astype(int)
                  - upright.transpose(2, 0, 1)).mean() < 8  # fmt: skip


def test_a_damaged_exif_block_does_not_lose_the_image(pets):
    image = Image.fromarray(noise(24, 24, 3))
    assert added(pets, "0.jpg", image, exif=b"Exif\0\0MM\0*\xff\xff\xff\xff").shape == (3, 24, 24)


def test_sixteen_bits_are_scaled_not_clipped():
    values = np.array([[0, 128, 257, 4096], [32768, 40000, 65278, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert decoded(Image.fromarray(values), kind).tolist() == [[[0, 0, 1, 16], [128, 156, 254, 255]]], kind


def test_fractions_are_scaled():
    image = Image.fromarray(np.array([[0, 0.5], [0.25, 1]], np.float32))
    assert decoded(image, "TIFF").tolist() == [[[0, 128], [64, 255]]]


@pytest.mark.parametrize("values", [[[0, 1.5]], [[-1, 0]], [[float("nan"), 0]]])
def test_values_of_no_known_range_are_refused(values):
    with pytest.raises(ValueError, match=r"expected 0 to 1; save it with 8 or 16 bits"):
        decoded(Image.fromarray(np.array(values, np.float32)), "TIFF")


def test_tiff_is_read(pets):
    image = noise(24, 24, 3, seed=9)
    assert np.array_equal(added(pets, "0.tiff", Image.fromarray(image)), image.transpose(2, 0, 1))


def test_what_is_transparent_is_white():
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    half = Image.new("RGBA", (4, 4), (0, 0, 0, 128))
    assert (decoded(clear) == 255).all() and (np.abs(decoded(half).astype(int) - 127) <= 1).all()
    assert (decoded(Image.new("LA", (4, 4), (9, 0))) == 255).all()
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([50, 60, 70] * 256)
    assert (decoded(palette, transparency=0) == 255).all()
    assert (decoded(palette)[:, 0, 0] == (50, 60, 70)).all()


def test_grey_with_transparency_stays_grey():
    assert decoded(Image.new("LA", (4, 4), (9, 255))).shape == (1, 4, 4)


def test_images_in_folders_of_a_class_belong_to_it(pets):
    deep = pets / "train" / "cat" / "2024" / "may"
    deep.mkdir(parents=True)
    for at in range(3):
        Image.fromarray(noise(24, 24, 3, seed=50 + at)).save(deep / f"{at}.png")
    (deep / "again").symlink_to(pets / "train" / "cat")  # a link that leads back
    assert np.bincount(datasets.load(str(pets)).y_train).tolist() == [8, 5]


def test_rubbish_is_skipped_and_counted(pets):
    rubbish = [pets / "train" / "__MACOSX" / "cat" / "._0.png", pets / "train" / "cat" / "__MACOSX" / "._1.png",
               pets / "train" / "cat" / ".DS_Store", pets / "train" / "cat" / "._0.png",
               pets / "train" / "dog" / "Thumbs.db", pets / "test" / ".cache" / "x.png"]  # fmt: skip
    for path in (*rubbish, pets / "train" / "labels.csv", pets / "test" / "dog" / "notes.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"rubbish")
    data = datasets.load(str(pets))
    assert (len(data.y_train), len(data.y_test)) == (10, 10) and data.class_names == ("cat", "dog")
    assert data.notes[0] == "files that are no images were skipped: 6 hidden or system, 2 other"


def test_a_third_split_is_not_used_and_that_is_said(pets):
    (pets / "valid" / "cat").mkdir(parents=True)
    assert datasets.load(str(pets)).notes[0] == "folders beside train and test are not used: valid"


def test_nothing_is_said_where_nothing_was_skipped(pets):
    assert datasets.load(str(pets)).notes == ("20 images of 3x24x24 (channels x height x width), as they are",)


@pytest.mark.parametrize("shape", [None, LENET])
def test_an_unreadable_image_is_named_with_what_to_do(pets, shape):
    (pets / "train" / "dog" / "3.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"dog/3\.png: not a readable image .*--skip-unreadable"):
        datasets.load(str(pets), shape=shape)


def test_unreadable_images_can_be_left_out_and_are_counted(pets):
    whole = datasets.load(str(pets))
    (pets / "train" / "cat" / "1.png").write_bytes(b"no image")
    cut = (pets / "train" / "dog" / "4.png").read_bytes()
    (pets / "train" / "dog" / "4.png").write_bytes(cut[:-400])
    (pets / "test" / "cat" / "0.png").write_bytes(b"")
    data = datasets.load(str(pets), skip_unreadable=True)
    kept = [0, 2, 3, 4, 5, 6, 7, 8]
    assert np.array_equal(data.x_train, whole.x_train[kept]) and np.array_equal(data.y_train, whole.y_train[kept])
    assert np.array_equal(data.x_test, whole.x_test[1:]) and np.array_equal(data.y_test, whole.y_test[1:])
    train, test = data.notes[1:]
    assert train == "2 of 10 train images could not be read and are left out: train/cat/1.png, train/dog/4.png"
    assert test == "1 of 10 test images could not be read and are left out: test/cat/0.png"


def test_data_of_which_nothing_is_left_are_refused(pets):
    for file in (pets / "test").glob("*/*"):
        file.write_bytes(b"no image")
    with pytest.raises(UserError, match="no image of the training set, or of the test set, could be read"):
        datasets.load(str(pets), skip_unreadable=True)


def test_an_image_that_would_fill_the_memory_is_refused(pets, monkeypatch):
    monkeypatch.setattr(images, "MOST_PIXELS", 2_000_000)
    Image.new("1", (2000, 1001)).save(pets / "train" / "dog" / "bomb.png")
    with pytest.raises(UserError, match=r"bomb\.png: 2000x1001 pixels are more than 2 million; shrink"):
        datasets.load(str(pets), shape=LENET)


def test_sites_taken_for_classes_are_pointed_at(tmp_path):
    for site in ("bergen", "cork"):
        for name in ("cat", "dog"):
            folder = tmp_path / "sites" / site / name
            folder.mkdir(parents=True)
            for at in range(3):
                Image.fromarray(noise(8, 8, seed=at)).save(folder / f"{at}.png")
    data = datasets.load(str(tmp_path / "sites"))
    assert data.class_names == ("bergen", "cork")
    assert data.notes[0].startswith("every class folder holds the same folders (cat, dog): if they are clients, use ")
