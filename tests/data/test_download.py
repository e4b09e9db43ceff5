"""Downloads from a host on this machine that is slow, cut off, wrong, in circles, or gone."""

import hashlib
import socket

import numpy as np
import pytest
from hosts import host

from dose_ood import InputError
from dose_ood.data.catalogue import Remote
from dose_ood.data.download import download
from dose_ood.noise import generator

CONTENT = generator("content of a file").integers(0, 256, 300_000, dtype=np.uint8).tobytes()
HALF = len(CONTENT) // 2


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with host({"file.gz": CONTENT}) as found:
        yield found


@pytest.fixture
def get(server, tmp_path):
    def attempt(how, timeout=2.0, progress=None):
        remote = Remote(f"{server.url}/{how}/file.gz", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        return download(remote, tmp_path / "downloads", timeout, progress)

    return attempt


@pytest.fixture
def part(tmp_path):
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads" / "file.gz.part"


@pytest.mark.parametrize("how", ["good", "slow", "once", "norange", "moved"])
def test_the_file_comes_whole_however_the_host_behaves(get, tmp_path, how):
    seen = []
    assert get(how, progress=lambda *each: seen.append(each)).read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == ["file.gz"]
    assert seen[-1] == ("file.gz", len(CONTENT), len(CONTENT))


def test_a_file_that_is_there_is_not_asked_for_again(get, server):
    get("good")
    get("good")
    assert len(server.asked) == 1


def test_an_interrupted_download_goes_on_where_it_stopped(get, server, part):
    part.write_bytes(CONTENT[:HALF])
    assert get("good").read_bytes() == CONTENT
    assert server.asked == [("good", f"bytes={HALF}-")]


def test_a_download_cut_off_again_and_again_keeps_what_came_and_goes_on_next_time(get, server, part):
    with pytest.raises(
        InputError, match=r"was cut off 3 times, after 262,500 of 300,000 bytes; the same command goes on"
    ):
        get("cut")
    assert part.read_bytes() == CONTENT[:262_500]
    assert get("good").read_bytes() == CONTENT
    assert server.asked[-1] == ("good", "bytes=262500-")


def test_a_host_that_falls_silent_is_left_after_the_timeout(get, part):
    with pytest.raises(InputError, match="was cut off 3 times, after 150,000 of 300,000 bytes"):
        get("silent", timeout=0.2)
    assert part.read_bytes() == CONTENT[:HALF]


def test_a_part_of_something_else_costs_a_second_download_and_no_more(get, server, part):
    part.write_bytes(bytes(HALF))
    assert get("good").read_bytes() == CONTENT
    assert server.asked == [("good", f"bytes={HALF}-"), ("good", None)]
    part.write_bytes(bytes(len(CONTENT) + 5))
    part.with_name("file.gz").unlink()
    assert get("good").read_bytes() == CONTENT
    part.write_bytes(CONTENT)
    part.with_name("file.gz").unlink()
    assert get("good").read_bytes() == CONTENT
    assert len(server.asked) == 3, "a part that is whole needs no host"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("wrong", r"has other content than is known \(sha256 .*\), and was removed"),
        ("more", "expected 300,000 bytes, the host has 300,004"),
        ("endless", "expected 300,000 bytes, the host sends more"),
        ("missing", r"the host answers 404 \(Not Found\)"),
        ("loop", "the host answers 302 "),
        ("local", "the host answers 302 "),
        ("ftp", "cannot be reached: unknown url type: ftp"),
        ("deaf", "the host has not answered for 0.2 s"),
    ],
)
def test_what_is_not_the_file_is_refused_and_nothing_of_it_stays(get, tmp_path, how, message):
    with pytest.raises(InputError, match=message) as caught:
        get(how, timeout=0.2 if how == "deaf" else 10.0)
    assert "\n" not in str(caught.value)
    left = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(left)


def test_a_wrong_file_under_the_right_name_is_replaced(get, part):
    part.with_name("file.gz").write_bytes(b"something else")
    assert get("good").read_bytes() == CONTENT


def test_no_host_at_all(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        remote = Remote(f"http://127.0.0.1:{taken.getsockname()[1]}/file.gz", 9, "0" * 64)
    with pytest.raises(InputError, match=r"cannot be reached: .*refused"):
        download(remote, tmp_path / "downloads")
    assert not (tmp_path / "downloads").exists()
    with pytest.raises(InputError, match="cannot be reached: unknown url type: file"):
        download(Remote("file:///etc/passwd", 9, "0" * 64), tmp_path)
