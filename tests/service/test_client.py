"""The service and the client that others use for the Open Inference Protocol, over a socket."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from serving import image_detector, rows, table_detector

from dose_ood.guard import Guard
from standin import stripes

http = pytest.importorskip("tritonclient.http")


@pytest.fixture
def client_of(tmp_path):
    running = []

    def start(detector):
        detector.save(tmp_path / "cameras")
        command = [sys.executable, "-m", "dose_ood", "serve", str(tmp_path / "cameras"), "--port", "0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        place = re.search(r"at http://(\S+) ", running[0].stderr.readline())
        return http.InferenceServerClient(place[1])

    yield start
    for each in running:
        each.kill()
        each.communicate()


def given(name, values, kind, binary):
    made = http.InferInput(name, list(values.shape), kind)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def test_images(client_of):
    images, guard = stripes(7), Guard.of(image_detector())
    client, expected = client_of(image_detector()), guard.score(images)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("cameras")
    (described,) = client.get_model_metadata("cameras")["inputs"]
    assert (described["datatype"], described["shape"]) == ("UINT8", [-1, 1, 8, 8])
    for binary in (True, False):
        asked = [http.InferRequestedOutput(name, binary_data=binary) for name in ("score", "p_value", "is_typical")]
        found = client.infer("cameras", [given(described["name"], images, "UINT8", binary)], outputs=asked)
        for name in ("score", "p_value", "is_typical"):
            np.testing.assert_array_equal(found.as_numpy(name), getattr(expected, name))
    later = [
        client.async_infer("cameras", [given(described["name"], images[i : i + 1], "UINT8", True)]) for i in range(7)
    ]
    np.testing.assert_array_equal([each.get_result().as_numpy("score")[0] for each in later], expected.score)


def test_a_table_and_what_is_refused(client_of):
    client, table = client_of(table_detector()), rows(50, seed=2)
    inputs = [given(name, table[name], "FP64", True) for name in table.names]
    found = client.infer("cameras", inputs)
    np.testing.assert_array_equal(found.as_numpy("score"), table_detector().score(table).score)
    assert found.as_numpy("contributions/rate").shape == (50,)
    with pytest.raises(Exception, match="like"):
        client.infer("cameras", inputs[:1])
    with pytest.raises(Exception, match="lorries"):
        client.infer("lorries", inputs)
