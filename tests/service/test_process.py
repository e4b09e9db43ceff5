"""`dose serve` as a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
from time import sleep

import httpx
import numpy as np
import pytest
from serving import ODD, columns, outputs, table_detector

TOKEN = "-".join(["letters"] * 4)


@pytest.fixture
def process(tmp_path):
    table_detector().save(tmp_path / "cameras")
    (tmp_path / "token").write_text(TOKEN)
    command = [sys.executable, "-m", "dose_ood", "serve", str(tmp_path / "cameras"), "--port", "0"]
    command += ["--token-file", str(tmp_path / "token")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        line = running.stderr.readline()
        found = re.search(r"serving cameras at http://127\.0\.0\.1:(\d+) \(asks for the token\)", line)
        assert found, line
        try:
            yield running, int(found[1])
        finally:
            running.kill()


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    except ConnectionError:
        return False
    return True


def test_it_serves_and_finishes_what_it_accepted_when_told_to_stop(process):
    running, port = process
    place, asked = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {TOKEN}"}
    document = {"inputs": columns(**{name: [value] for name, value in ODD.items()})}
    assert httpx.get(f"{place}/v2/health/ready").status_code == 200
    assert httpx.post(f"{place}/v2/models/cameras/infer", json=document).status_code == 401
    found = outputs(httpx.post(f"{place}/v2/models/cameras/infer", json=document, headers=asked))
    assert found["is_typical"] == [False]
    body = b"rate,like\n0.25,0.5\n"
    head = f"POST /score HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: text/csv\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as half:
        half.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        httpx.get(f"{place}/v2/health/live")  # by now, the half request has been read too
        running.send_signal(signal.SIGTERM)
        while listens(port):
            sleep(0.01)
        half.sendall(body[5:])
        answer = b"".join(iter(lambda: half.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    expected = table_detector().estimator.score_samples(np.array([[0.25, 0.5]]))[0]
    assert f'"score": [{expected!r}]'.encode() in answer or str(float(expected)).encode() in answer
    assert running.wait(20) == 0
    assert running.stderr.read() == ""


def test_a_place_that_others_reach_needs_a_token(tmp_path):
    table_detector().save(tmp_path / "detector")
    command = [sys.executable, "-m", "dose_ood", "serve", str(tmp_path / "detector"), "--host", "0.0.0.0"]  # noqa: S104
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "which needs a --token-file" in run.stderr
