"""The Open Inference Protocol."""

import asyncio
import json

import numpy as np
import pytest
from serving import Client, client_of, columns, image_detector, images_input, outputs, rows, shared, table_detector

from dose_ood import Statistics, WhitenedSVM
from dose_ood.guard import Guard
from dose_ood.service.settings import Settings
from standin import stripes


@pytest.fixture(scope="module")
def tables():
    return shared(table_detector())


@pytest.fixture(scope="module")
def pictures():
    return shared(image_detector())


def test_health_and_metadata(tables, pictures):
    assert tables.get("/v2/health/live").json() == {"live": True}
    assert tables.get("/v2/health/ready").json() == {"ready": True}
    assert tables.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert tables.get("/v2/models/detector/ready").json()["ready"]
    found = tables.get("/v2/models/detector").json()
    assert [each["name"] for each in found["inputs"]] == ["rate", "like"]
    assert pictures.get("/v2/models/detector").json()["inputs"] == [
        {"name": "images", "datatype": "UINT8", "shape": [-1, 1, 8, 8]}
    ]
    names = [each["name"] for each in found["outputs"]]
    assert names[:4] == ["score", "p_value", "is_typical", "is_bad"]
    assert names[4:] == ["statistics/rate", "statistics/like", "contributions/rate", "contributions/like"]


@pytest.mark.parametrize("detector", [table_detector, lambda: table_detector(WhitenedSVM)], ids=["kde", "svm"])
def test_statistics_are_scored_as_the_detector_scores_them(detector):
    table, detector = rows(50, 2), detector()
    answer = Client(detector).infer({"id": "7", "inputs": columns(like=table["like"], rate=table["rate"])})
    assert answer.status_code == 200
    assert answer.json()["id"] == "7"
    found, expected = outputs(answer), detector.score(table)
    np.testing.assert_allclose(found["score"], expected.score, rtol=1e-12)
    np.testing.assert_allclose(found["p_value"], expected.p_value)
    assert found["is_typical"] == expected.is_typical.tolist()
    added = detector.estimator.contributions(table.values)
    np.testing.assert_allclose(found["contributions/like"], added[:, 1], rtol=1e-12)
    np.testing.assert_array_equal(found["statistics/like"], table["like"])


def test_what_is_not_finite_is_flagged_and_null(tables):
    answer = tables.infer({"inputs": columns(rate=[0.0, None, 1e999], like=[0.0, 0.0, 1.0])})
    found = outputs(answer)
    expected = table_detector().score(
        Statistics(("rate", "like"), np.array([[0.0, 0.0], [np.nan, 0], [np.inf, 1]]), "flag")
    )
    assert found["is_bad"] == [False, True, True] == expected.is_bad.tolist()
    assert found["is_typical"] == expected.is_typical.tolist()
    assert found["score"][1:] == [None, None]
    np.testing.assert_allclose(found["p_value"], expected.p_value)
    assert found["contributions/like"][0] is not None
    assert found["contributions/like"][1:] == [None, None]


def test_images_in_json_and_in_binary_are_scored_as_the_guard_scores_them(pictures):
    images = stripes(20, seed=5)
    expected = Guard.of(image_detector()).score(images)
    plain = pictures.infer({"inputs": [images_input(images)]})
    np.testing.assert_allclose(outputs(plain)["score"], expected.score, rtol=1e-5)
    head = {
        "name": "images",
        "shape": [20, 1, 8, 8],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": images.size},
    }
    wanted = [
        {"name": "score", "parameters": {"binary_data": True}},
        {"name": "is_typical", "parameters": {"binary_data": True}},
        {"name": "p_value"},
    ]
    answer = pictures.infer({"inputs": [head], "outputs": wanted}, images.tobytes())
    size = int(answer.headers["Inference-Header-Content-Length"])
    document = json.loads(answer.content[:size])
    score, typical, p_value = document["outputs"]
    assert score["parameters"] == {"binary_data_size": 160}
    np.testing.assert_allclose(np.frombuffer(answer.content[size : size + 160]), expected.score, rtol=1e-5)
    assert np.frombuffer(answer.content[size + 160 :], bool).tolist() == expected.is_typical.tolist()
    np.testing.assert_allclose(p_value["data"], expected.p_value)
    assert typical["datatype"] == "BOOL"


def test_all_outputs_are_binary_if_asked(tables):
    answer = tables.infer({"inputs": columns(rate=[0.0], like=[0.0]), "parameters": {"binary_data_output": True}})
    size = int(answer.headers["Inference-Header-Content-Length"])
    sizes = [each["parameters"]["binary_data_size"] for each in json.loads(answer.content[:size])["outputs"]]
    assert sizes == [8, 8, 1, 1, 8, 8, 8, 8]
    assert len(answer.content) == size + sum(sizes)


@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 8, 8, 1), (8, 8), (1, 8, 8)])
def test_images_come_in_several_shapes(pictures, shape):
    images = stripes(3, seed=5)
    count = 3 if shape[0] == 3 else 1
    tensor = {**images_input(images[:count]), "shape": list(shape)}
    expected = Guard.of(image_detector()).score(images[:count]).score
    np.testing.assert_allclose(outputs(pictures.infer({"inputs": [tensor]}))["score"], expected, rtol=1e-5)


def test_a_detector_with_a_model_takes_statistics_too(pictures):
    answer = pictures.infer({"inputs": columns(iwae=[-100.0], rate=[5.0])})
    expected = image_detector().score(Statistics.from_columns({"rate": [5.0], "iwae": [-100.0]})).score
    np.testing.assert_allclose(outputs(answer)["score"], expected)


def test_a_verdict_does_not_depend_on_the_batch(pictures):
    images = stripes(40, seed=6)
    expected = Guard.of(image_detector()).score(images).score

    async def together():
        async with client_of(pictures.app) as client:
            asked = [
                client.post("/v2/models/detector/infer", json={"inputs": [images_input(images[i : i + 1])]})
                for i in range(len(images))
            ]
            return await asyncio.gather(*asked)

    found = [outputs(answer)["score"][0] for answer in asyncio.run(together())]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert len(set(found)) == 40


GOOD = columns(rate=[0.0], like=[0.0])
BINARY = {"name": "rate", "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}}


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        ([], 400, "expected a JSON object with inputs, got list"),
        ({}, 400, "expected inputs, a list of tensors"),
        ({"inputs": ["rate"]}, 400, "expected every input to be an object with a name"),
        ({"inputs": [GOOD[0], GOOD[0]]}, 400, "expected one input called 'rate', got several"),
        ({"inputs": [{**GOOD[0], "shape": [-1]}]}, 400, "expected a shape of one to four whole numbers, got [-1]"),
        ({"inputs": [{**GOOD[0], "shape": [True]}]}, 400, "expected a shape"),
        ({"inputs": [{**GOOD[0], "datatype": "BYTES"}]}, 422, "expected a datatype of BOOL"),
        ({"inputs": [{**GOOD[0], "data": "x"}]}, 400, "expected data, a list of numbers, got str"),
        ({"inputs": [{**GOOD[0], "data": ["x"]}]}, 422, "expected numbers, got something else"),
        ({"inputs": [{**GOOD[0], "data": [[1], [1, 2]]}]}, 422, "rows of different lengths"),
        ({"inputs": [{**GOOD[0], "data": [1, 2]}]}, 422, "expected 1 numbers, as its shape says, got 2"),
        ({"inputs": GOOD[:1]}, 422, "expected inputs 'rate', 'like', got 'rate'"),
        ({"inputs": columns(rate=[0.0], like=[0.0, 1.0])}, 422, "expected shape (rows,), the same for all"),
        ({"inputs": columns(rate=[], like=[])}, 422, "expected at least one sample, got none"),
        ({"inputs": GOOD, "outputs": [{"name": "label"}]}, 422, "expected outputs among 'score'"),
        ({"inputs": GOOD, "outputs": 3}, 400, "expected outputs, a list"),
        ({"inputs": GOOD, "parameters": 3}, 400, "expected parameters to be an object"),
        ({"inputs": GOOD, "id": 3}, 400, "expected an id"),
        ({"inputs": [BINARY]}, 400, "expected binary_data_size up to 0, got 8"),
        ({"inputs": columns(rate=[0.0] * 6, like=[0.0] * 6)}, 413, "expected at most 5 rows in a request, got 6"),
    ],
)
def test_bad_requests_are_told_what_was_expected(document, status, said):
    answer = shared(table_detector(), Settings(rows=5)).infer(document)
    assert answer.status_code == status
    assert said in answer.json()["error"]
    assert answer.json().keys() == {"error"}


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"datatype": "FP32"}, 422, "expected datatype UINT8"),
        ({"shape": [1, 1, 4, 16]}, 422, "expected images of shape (n, 1, 8, 8), got (1, 1, 4, 16)"),
        ({"data": [256] * 64}, 422, "expected whole numbers from 0 to 255"),
        ({"data": [0.5] * 64}, 422, "expected whole numbers from 0 to 255"),
        ({"shape": [0, 1, 8, 8], "data": []}, 422, "expected"),
        ({"shape": [3, 1, 8, 8], "data": [0] * 192}, 413, "expected at most 2 images in a request, got 3"),
    ],
)
def test_bad_images_are_told_what_was_expected(change, status, said):
    answer = shared(image_detector(), Settings(images=2)).infer({"inputs": [images_input(stripes(1)) | change]})
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text


def test_broken_bodies(tables):
    path = "/v2/models/detector/infer"
    assert "no JSON" in tables.post(path, b"{", "application/json").json()["error"]
    deep = tables.post(path, b"[" * 100_000, "application/json")
    assert deep.status_code == 400
    for length in ("x", "-1", "999", "9" * 40):
        answer = tables.post(path, b"{}", "application/json", {"Inference-Header-Content-Length": length})
        assert (answer.status_code, "Inference-Header" in answer.json()["error"]) == (400, True)
    two = [BINARY, {**BINARY, "name": "like"}]
    short = tables.infer({"inputs": [BINARY, *GOOD[1:]]}, b"\0" * 9)
    assert "expected 8 bytes of tensors after the JSON, as the inputs say, got 9" in short.json()["error"]
    assert tables.infer({"inputs": two}, np.zeros(2).tobytes()).status_code == 200
    wrong = [{**BINARY, "shape": [2]}, GOOD[1]]
    assert "expected 16 bytes of FP64, got 8" in tables.infer({"inputs": wrong}, b"\0" * 8).json()["error"]
    kind = tables.post(path, b"{}", "text/plain")
    assert (kind.status_code, "got 'text/plain'" in kind.json()["error"]) == (415, True)
    name = tables.infer({"inputs": GOOD}, name="other")
    assert (name.status_code, name.json()["error"]) == (404, "expected the model 'detector', got 'other'")
    assert tables.get("/v2/models/other").status_code == tables.get("/v2/models/other/ready").status_code == 404
