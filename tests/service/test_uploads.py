"""POST /score: what it takes, and what it refuses before it grows."""

import io
import tracemalloc
from base64 import b64decode

import numpy as np
import pyarrow as pa
import pytest
from serving import image_detector, npy, parquet, png, rows, shared, table_detector

from dose_ood import Statistics
from dose_ood.guard import Guard
from dose_ood.noise import generator
from dose_ood.service.parquet import read_parquet
from dose_ood.service.settings import Refusal, Settings
from dose_ood.service.uploads import Taste, read_upload
from standin import stripes

PARQUET, NPY = "application/vnd.apache.parquet", "application/x-npy"


@pytest.fixture(scope="module")
def tables():
    return shared(table_detector(), Settings(rows=1000, decoded=2**20))


@pytest.fixture(scope="module")
def pictures():
    return shared(image_detector(), Settings(images=50))


def csv(table):
    lines = [",".join(table.names), *(",".join(map(repr, row)) for row in table.values.tolist())]
    return ("\n".join(lines) + "\n").encode()


@pytest.mark.parametrize("kind", [PARQUET, "text/csv", "application/octet-stream"])
def test_a_table_is_scored_as_the_detector_scores_it(tables, kind):
    table = rows(30, 3)
    extra = table.to_arrow().append_column("name", pa.array(["x"] * 30))
    answer = tables.post("/score", csv(table) if kind == "text/csv" else parquet(extra), kind)
    found, expected = answer.json(), table_detector().score(table)
    np.testing.assert_allclose(found["score"], expected.score)
    np.testing.assert_allclose(found["p_value"], expected.p_value)
    assert found["is_typical"] == expected.is_typical.tolist()
    assert found["atypical"] == int((~expected.is_typical).sum())
    told = table_detector().explain(table)
    order = np.argsort(expected.score, kind="stable")[:20].tolist()
    assert [each["row"] for each in found["samples"]] == order
    assert [each["summary"] for each in found["samples"]] == [told[row].summary for row in order]


def test_bad_rows_are_flagged_and_explained(tables):
    for content, kind in (
        (b"rate,like\n0,0\n,1\nx,nan\n", "text/csv"),
        (parquet({"rate": [0.0, None, float("inf")], "like": [0, 1, None]}), PARQUET),
    ):
        found = tables.post("/score", content, kind).json()
        assert (found["is_bad"], found["bad"], found["atypical"]) == ([False, True, True], 2, 2)
        assert found["samples"][0]["summary"].endswith("rate is not a finite number")
        assert found["samples"][0]["score"] is None
        assert found["samples"][2]["is_typical"]


def test_images_are_scored_and_reconstructed(pictures):
    images, guard = stripes(12, seed=4), Guard.of(image_detector())
    found = pictures.post("/score?reconstruct=true&explain=2", npy(images[:, 0]), NPY).json()
    np.testing.assert_allclose(found["score"], guard.score(images).score, rtol=1e-5)
    assert len(found["samples"]) == 2
    sample = found["samples"][0]
    row = sample["row"]
    assert b64decode(sample["image"]["pixels"]) == images[row].tobytes()
    again = np.frombuffer(b64decode(sample["reconstruction"]["pixels"]), np.uint8)
    assert np.abs(again.astype(int) - guard.reconstruct(images[row : row + 1]).ravel()).max() <= 1
    plain = pictures.post("/score", npy(images), NPY).json()
    assert plain["samples"][0]["reconstruction"] is None
    assert plain["score"] == pytest.approx(found["score"], rel=1e-6)


def test_a_picture_is_its_pixels(pictures):
    image = stripes(1, seed=4)
    expected = Guard.of(image_detector()).score(image).score
    grey, pixels = image[0, 0], np.repeat(image[0, 0][..., None], 4, axis=2)
    pixels[..., 3] = 255
    for content in (png(grey), png(pixels[..., :3]), png(pixels)):
        for kind in ("image/png", "application/octet-stream"):
            np.testing.assert_allclose(pictures.post("/score", content, kind).json()["score"], expected, rtol=1e-5)


def fortran(images):
    file = io.BytesIO()
    np.save(file, np.asfortranarray(images))
    return file.getvalue()


def test_the_layout_of_an_npy_does_not_matter(pictures):
    images = stripes(5, seed=4)
    first, second = (pictures.post("/score", write(images), NPY).json() for write in (npy, fortran))
    assert first["score"] == second["score"]


COLOUR = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
CLEAR = np.full((8, 8, 4), 9, np.uint8)


@pytest.mark.parametrize(
    ("content", "kind", "status", "said"),
    [
        (b"", "image/png", 422, "got an empty body"),
        (png(COLOUR), "image/gif", 415, "expected a content type of image/png"),
        (png(COLOUR), "image/png", 422, "expected a picture of 8×8 pixels, grey, got colour"),
        (png(CLEAR), "image/png", 422, "transparent in places"),
        (png(np.zeros((4, 6), np.uint8)), "image/png", 422, "expected a picture of 8×8 pixels, grey, got 6×4"),
        (png(COLOUR, 60_000, 60_000), "image/png", 422, "expected a picture of 8×8"),
        (png(COLOUR)[:40], "image/png", 422, "cannot be decoded"),
        (npy(COLOUR), "image/png", 422, "as the content type image/png says, got something else"),
        (npy(np.array([None, {}])), NPY, 422, "expected an .npy of uint8 images, got object"),
        (npy(np.zeros((3, 2))), NPY, 422, "got float64; statistics need names"),
        (npy(stripes(2, size=9)), NPY, 422, "expected images of shape (n, 1, 8, 8), got (2, 1, 9, 9)"),
        (npy(stripes(51)), NPY, 413, "expected at most 50 images in a request, got 51"),
        (npy(stripes(3))[:-1], NPY, 422, "expected 192 bytes of pixels, as the .npy's shape says, got 191"),
        (npy(stripes(3)) + b"x", NPY, 422, "got 193"),
        (b"\x93NUMPY\x01\x00\xff\xff", NPY, 422, "cannot read the npy"),
        (b"\x93NUMPY\x09\x00", NPY, 422, "expected .npy of version 1.0 or 2.0, got 9.0"),
        (npy(stripes(3)).replace(b"(3, 1, 8, 8)", b"(__import__)"), NPY, 422, "cannot read the npy"),
        (b"\0\1\2\3", "application/octet-stream", 422, "expected a PNG, JPEG or BMP picture, .npy, Parquet or CSV"),
    ],
)
def test_bad_images_are_refused(pictures, content, kind, status, said):
    answer = pictures.post("/score", content, kind)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status", "said"),
    [
        (npy(stripes(1)), NPY, 422, "expected a table of rate, like, as the detector holds no model, got images"),
        (b"rate,lik\n1,2\n", "text/csv", 422, "has no column 'like'"),
        (b"rate,like\n", "text/csv", 422, "expected at least one sample"),
        (b"rate,like\n1,2,3\n", "text/csv", 422, "cannot read the csv"),
        (b"rate,like\n" + b"1,2\n" * 1001, "text/csv", 413, "expected at most 1,000 rows"),
        (parquet({"rate": [1.0], "lik": [1.0]}), PARQUET, 422, "did you mean 'lik'?"),
        (parquet({"rate": ["x"], "like": [1.0]}), PARQUET, 422, "expected numbers, got string"),
        (parquet({"rate": [[1.0]], "like": [1.0]}), PARQUET, 422, "expected numbers, got list"),
        (parquet({"rate": pa.array([], pa.float64()), "like": pa.array([], pa.float64())}), PARQUET, 422, "no rows"),
        (parquet({"rate": np.zeros(1001), "like": np.zeros(1001)}), PARQUET, 413, "expected at most 1,000 rows"),
        (parquet({"rate": [1.0], "like": [1.0]})[:-1], PARQUET, 422, "begins and ends with PAR1"),
        (b"PAR1" + b"\xff" * 8 + b"PAR1", PARQUET, 422, "expected a Parquet footer of at most 4 bytes"),
        (b"PAR1" + b"\x15" * 60 + (50).to_bytes(4, "little") + b"PAR1", PARQUET, 422, "cannot read the parquet"),
    ],
)
def test_bad_tables_are_refused(tables, content, kind, status, said):
    answer = tables.post("/score", content, kind)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_a_parquet_bomb_is_refused_before_it_grows(codec, dictionary):
    count = 3_000_000
    zeros = {"rate": np.zeros(count), "like": np.zeros(count)}
    bomb = parquet(zeros, compression=codec, use_dictionary=dictionary, data_page_size=2**26)
    names = ("rate", "like")
    usual, watched = pa.default_memory_pool(), pa.system_memory_pool()
    before = watched.max_memory()
    pa.set_memory_pool(watched)  # Arrow's memory is not Python's
    tracemalloc.start()
    for settings in (Settings(), Settings(rows=10**9, decoded=2**10)):
        with pytest.raises(Refusal) as found:
            read_parquet(bomb, names, settings)
        assert found.value.status == 413
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()
    pa.set_memory_pool(usual)
    assert usual.backend_name != watched.backend_name
    assert watched.max_memory() - before < 2**22
    assert len(bomb) < 2**23


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_the_sizes_of_pages_are_read_right(codec, version):
    table = rows(5000, 8)
    content = parquet(table.to_arrow(), compression=codec, data_page_size=4096, row_group_size=1500,
                      data_page_version=version, write_statistics=True, write_page_checksum=True)  # fmt: skip
    np.testing.assert_array_equal(
        read_parquet(content, ("like", "rate"), Settings()), table.select(["like", "rate"]).values
    )
    with pytest.raises(Refusal):
        read_parquet(content, ("like", "rate"), Settings(decoded=60_000))


def test_broken_parquet_never_does_more_than_be_refused():
    content = parquet(rows(200, 8).to_arrow(), compression="snappy")
    random, taste = generator("broken parquet"), Taste(("rate", "like"), None)
    refusals = []
    for _ in range(300):
        broken = bytearray(content)
        for place in random.integers(4, len(content) - 4, size=3):
            broken[place] = random.integers(256)
        try:
            read_upload(bytes(broken), PARQUET, taste, Settings())
        except Refusal as refusal:
            refusals.append(refusal)
    assert len(refusals) > 100
    assert {each.status for each in refusals} <= {413, 422}
    assert not any("\n" in each.message for each in refusals)


def test_how_many_are_explained(tables):
    content = csv(rows(30, 3))
    assert len(tables.post("/score?explain=0", content, "text/csv").json()["samples"]) == 0
    for text in ("-1", "101", "x", "1e9"):
        assert tables.post(f"/score?explain={text}", content, "text/csv").status_code == 422


def test_a_name_with_a_dot_is_one_column():
    table = Statistics(("a", "a.b"), rows(40).values)
    content = parquet(table.to_arrow())
    np.testing.assert_array_equal(read_parquet(content, ("a",), Settings()), table.select(["a"]).values)
