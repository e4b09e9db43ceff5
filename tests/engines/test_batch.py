import io

import numpy as np
import pyarrow as pa
import pytest

from dose_ood import Detector, InputError, ProductKDE, Statistics
from dose_ood.benchmark.toys import gaussian
from dose_ood.engines import BatchScorer

NAMES = ("norm", "like", "first", "max")


@pytest.fixture(scope="module")
def detector():
    return Detector.fit(gaussian(2000).select(NAMES), gaussian(500, seed=1).select(NAMES), ProductKDE())


def test_a_batch_is_scored_as_the_table_is(detector):
    rows = gaussian(300, seed=2)
    batch = pa.record_batch({"id": [f"r{i}" for i in range(300)], **{n: rows[n] for n in reversed(NAMES)}})
    found = BatchScorer(detector, keep=("id", "like")).score_batch(batch)
    expected = detector.score(rows)
    assert found.schema.names == ["id", "like", "score", "p_value", "is_typical", "is_bad"]
    np.testing.assert_array_equal(found["score"], expected.score)
    np.testing.assert_array_equal(found["p_value"], expected.p_value)
    assert found["id"].equals(batch["id"])
    halves = [BatchScorer(detector).score_batch(part) for part in (batch.slice(0, 77), batch.slice(77))]
    np.testing.assert_array_equal(np.concatenate([half["score"] for half in halves]), expected.score)


def test_bad_rows_are_refused_or_flagged(detector):
    batch = pa.record_batch({name: [0.5, None if name == "max" else 1.0] for name in NAMES})
    with pytest.raises(InputError, match="row 1, column 'max'"):
        BatchScorer(detector).score_batch(batch)
    found = BatchScorer(detector, on_bad="flag").score_batch(batch)
    assert found["is_bad"].to_pylist() == [False, True]
    assert found["score"][1].as_py() == -np.inf


def test_what_a_batch_lacks_and_what_cannot_be_kept(detector):
    with pytest.raises(InputError, match="has no column 'like'"):
        BatchScorer(detector).score_batch(pa.record_batch({"norm": [1.0]}))
    with pytest.raises(InputError, match="the batch has no column 'id'"):
        BatchScorer(detector, keep=("id",)).score_batch(pa.record_batch({name: [1.0] for name in NAMES}))
    for keep in (("score",), ("row",), ("id", "id")):
        with pytest.raises(InputError, match="keep"):
            BatchScorer(detector, keep=keep)


@pytest.fixture(scope="module")
def guard():
    pytest.importorskip("torch")
    from dose_ood.guard import Guard, with_model
    from dose_ood.measure import measure
    from dose_ood.models.registry import Loaded, build
    from dose_ood.models.vae import VAEConfig
    from standin import stripes

    model = build(VAEConfig(shape=(1, 8, 8), depth=4, components=5), seed=3).eval()
    fitted = Detector.fit(
        measure(model, stripes(120)), measure(model, stripes(60, seed=1)), ProductKDE(), ("rate", "iwae")
    )
    return Guard.of(with_model(fitted, Loaded(model, {})))


def test_images_in_a_column_are_scored_as_images(guard):
    from PIL import Image

    from standin import stripes

    images = stripes(12, seed=2)
    expected = guard.score(images).score
    assert len(set(expected)) == 12
    encoded = []
    for image in images:
        Image.fromarray(image[0]).save(file := io.BytesIO(), format="PNG")
        encoded.append(file.getvalue())
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    scorer = BatchScorer(guard.detector, keep=("id",))
    for column in (pa.array(encoded), tensors):
        batch = pa.record_batch({"id": pa.array(range(12)), "image": column})
        found = scorer.score_batch(batch)
        np.testing.assert_array_equal(found["score"], expected)
        np.testing.assert_array_equal(scorer.score_batch(batch.slice(0, 12))["id"], range(12))
    with pytest.raises(InputError, match="expected pictures as binary or as tensors of uint8, got double"):
        scorer.score_batch(pa.record_batch({"id": [1], "image": [0.5]}))
    with pytest.raises(InputError, match="row 0 of column 'image': expected a picture, got no value"):
        scorer.score_batch(pa.record_batch({"id": [1], "image": pa.array([None], pa.binary())}))


def test_a_detector_with_a_model_still_takes_tables(guard):
    from standin import stripes

    rows = guard.measure(stripes(9, seed=4))
    found = BatchScorer(guard.detector).score_batch(rows.to_arrow().to_batches()[0])
    np.testing.assert_array_equal(found["score"], guard.detector.score(rows).score)
    assert isinstance(rows, Statistics)
