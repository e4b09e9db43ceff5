"""Folders that Hugging Face's `save_to_disk` wrote; those in saved/ were written by that library (make_saved.py)."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from dose_ood import InputError
from dose_ood.data.images import read_images

SAVED = Path(__file__).parent / "saved"
with np.load(SAVED / "truth.npz") as _truth:
    GREY, COLOUR = _truth["g"], _truth["c"]


def png(image):
    content = io.BytesIO()
    Image.fromarray(image).save(content, "png")
    return content.getvalue()


def save(folder, *tables, state=None):
    folder.mkdir(parents=True)
    names = [f"data-{number}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    listed = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(listed if state is None else state))
    return folder


def test_what_the_library_wrote_is_read_pixel_by_pixel():
    assert np.array_equal(read_images(SAVED / "dict"), GREY[:, None])
    assert np.array_equal(read_images(f"{SAVED}/dict:test"), GREY[::-1, None])
    assert np.array_equal(read_images(f"{SAVED}/dict:test:hflip"), GREY[::-1, None, :, ::-1])
    assert np.array_equal(read_images(SAVED / "dict" / "test"), GREY[::-1, None])
    assert np.array_equal(read_images(SAVED / "array"), COLOUR.transpose(0, 3, 1, 2))


def test_shards_and_chunks_keep_their_order(tmp_path):
    halves = [pa.table({"img": [{"bytes": png(each), "path": None} for each in part]}) for part in (GREY[:2], GREY[2:])]
    assert np.array_equal(read_images(save(tmp_path / "pictures", *halves)), GREY[:, None])
    kind = pa.list_(pa.list_(pa.uint8()))
    chunks = pa.table({"x": pa.chunked_array([pa.array(part.tolist(), kind) for part in (GREY[:3], GREY[3:])])})
    assert np.array_equal(read_images(save(tmp_path / "arrays", chunks, chunks)), np.concatenate([GREY, GREY])[:, None])
    fixed = pa.list_(pa.list_(pa.uint8(), 7), 6)
    table = pa.table({"x": pa.array(GREY.tolist(), fixed)})
    assert np.array_equal(read_images(save(tmp_path / "fixed", table.slice(1, 3))), GREY[1:4, None])


PICTURE = {"bytes": png(GREY[0]), "path": "a.png"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "expected one column of pictures or of uint8 arrays .*, got 0; it has text"),
        ({"a": [PICTURE], "b": [PICTURE]}, "got 2; it has a .*, b "),
        ({"a": [PICTURE, {"bytes": None, "path": "/etc/passwd"}]}, "row 1 .*expected a picture in the file itself"),
        ({"a": [PICTURE, None]}, "expected a picture in the file itself"),
        ({"a": [{"bytes": b"no picture", "path": ""}]}, "row 0 of 'a' .* cannot be read as a picture"),
        ({"a": [PICTURE, {"bytes": png(COLOUR[0]), "path": ""}]}, "row 1 .*: expected 7×6 grey as in .*got 7×6 RGB"),
        ({"a": pa.array([[[1, 2]], [[1]]], pa.list_(pa.list_(pa.uint8())))}, "expected arrays of one shape"),
        ({"a": pa.array([[[1, None]]], pa.list_(pa.list_(pa.uint8())))}, "without gaps"),
        ({"a": pa.array([], pa.list_(pa.list_(pa.uint8())))}, "expected images, found no row"),
    ],
)
def test_tables_without_one_column_of_images_are_refused(tmp_path, columns, message):
    with pytest.raises(InputError, match=message):
        read_images(save(tmp_path / "set", pa.table(columns)))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "expected a list of files"),
        ([], "expected a JSON object"),
        ({"_data_files": [{"filename": "../outside.arrow"}]}, "expected names of files beside it, got '../outside"),
        ({"_data_files": [{"filename": "/etc/passwd"}]}, "expected names of files beside it"),
        ({"_data_files": ["a"]}, "expected names of files beside it, got None"),
        ({"_data_files": [{"filename": "missing.arrow"}]}, "cannot read .*missing.arrow"),
        ({"_data_files": [{"filename": "state.json"}]}, "cannot read .*state.json as an Arrow stream"),
        ({"_data_files": [{"filename": "data-0.arrow"}], "_indices_files": ["i.arrow"]}, "save flatten_indices"),
    ],
)
def test_a_state_that_leads_elsewhere_is_refused(tmp_path, state, message):
    table = pa.table({"image": [PICTURE]})
    shutil.copy(save(tmp_path / "other", table) / "data-0.arrow", tmp_path / "outside.arrow")
    with pytest.raises(InputError, match=message):
        read_images(save(tmp_path / "set", table, state=state))


def test_parts_that_are_none_are_refused(tmp_path):
    shutil.copytree(SAVED / "dict", tmp_path / "dict")
    listing = tmp_path / "dict" / "dataset_dict.json"
    for splits, source, message in (
        (["train"], "dict:test", "has no part 'test'; it has train"),
        (["a", "b"], "dict", "has no part 'train'; it has a, b"),
        (["../other"], "dict", "expected a list of names under splits"),
        (7, "dict", "expected a list of names under splits"),
    ):
        listing.write_text(json.dumps({"splits": splits}))
        with pytest.raises(InputError, match=message):
            read_images(f"{tmp_path}/{source}")
    listing.write_text("[" * 100_000)
    with pytest.raises(InputError, match="got one within one"):
        read_images(tmp_path / "dict")
    with pytest.raises(InputError, match="is a single set and has no part 'test'"):
        read_images(f"{tmp_path}/dict/train:test")


def test_a_stream_that_is_cut_off_or_lies_about_its_offsets_is_refused(tmp_path):
    folder = save(tmp_path / "set", pa.table({"image": [PICTURE] * 3}))
    whole = (folder / "data-0.arrow").read_bytes()
    (folder / "data-0.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cannot read .*data-0.arrow as an Arrow stream"):
        read_images(folder)
    size = len(PICTURE["bytes"])
    offsets = np.array([0, size, 2 * size, 3 * size], "<i4").tobytes()
    assert offsets in whole
    (folder / "data-0.arrow").write_bytes(whole.replace(offsets, np.array([0, size, 2 * size, 2**30], "<i4").tobytes()))
    with pytest.raises(InputError, match=r"cannot read .*data-0.arrow as an Arrow stream"):
        read_images(folder)
