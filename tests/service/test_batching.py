"""Many clients, one model: what is gathered, what is refused, what survives."""

import asyncio
import json
import threading
from time import monotonic

import numpy as np
import pytest
from serving import Client, client_of, columns, outputs, rows, table_detector

from dose_ood import InputError, Statistics
from dose_ood.service.batching import Batcher
from dose_ood.service.judge import Judge, Samples
from dose_ood.service.settings import Refusal, Settings

BATCH = Settings(batch=4, wait=0.05, queue=6)


class Slow:
    """A judge that waits to be let go, and notes the sizes of its batches."""

    def __init__(self, fail=lambda values: False):
        self.judge, self.fail = Judge(table_detector()), fail
        self.go, self.entered, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, batch):
        self.entered.set()
        assert self.go.wait(20)
        self.batches.append([len(samples) for samples in batch])
        if any(self.fail(samples.values) for samples in batch):
            raise InputError("poisoned")
        return self.judge(batch)


def one(value=0.0):
    return Samples(values=np.array([[value, 0.0]]))


def running(work, settings=BATCH):
    """Run a coroutine function with a batcher that was started, and stop it after."""

    def decorate(test):
        async def whole():
            batcher = Batcher(work, settings)
            batcher.start()
            try:
                return await test(batcher)
            finally:
                getattr(work, "go", threading.Event()).set()
                await batcher.stop()

        return asyncio.run(whole())

    return decorate


def test_what_waits_becomes_one_batch():
    work = Slow()

    @running(work)
    async def _(batcher):
        first = batcher.submit(one())
        await asyncio.to_thread(work.entered.wait, 20)
        rest = [batcher.submit(one(value))[0] for value in (1.0, 2.0, 3.0)]
        work.go.set()
        found = await asyncio.gather(*first, *rest)
        expected = table_detector().score(rows_of([0.0, 1.0, 2.0, 3.0])).score
        np.testing.assert_allclose([each.scores.score[0] for each in found], expected)

    assert work.batches == [[1], [1, 1, 1]]


def rows_of(values):
    return Statistics(("rate", "like"), np.array([[value, 0.0] for value in values]))


def test_images_are_cut_into_batches_and_put_together_again():
    images = np.arange(10 * 64, dtype=np.int64).astype(np.uint8).reshape(10, 1, 8, 8)
    pieces = Samples(images=images).pieces(4)
    assert [len(piece) for piece in pieces] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([piece.images for piece in pieces]), images)


def test_a_lone_request_waits_no_longer_than_it_must():
    work = Slow()
    work.go.set()

    @running(work)
    async def _(batcher):
        started = monotonic()
        await batcher.submit(one())[0]
        assert monotonic() - started >= BATCH.wait


def test_a_full_queue_refuses_at_once():
    work = Slow()

    @running(work)
    async def _(batcher):
        taken = batcher.submit(one())
        await asyncio.to_thread(work.entered.wait, 20)
        for _ in range(BATCH.queue):
            taken += batcher.submit(one())
        with pytest.raises(Refusal) as found:
            batcher.submit(one())
        assert (found.value.status, found.value.headers) == (429, {"Retry-After": "1"})
        assert batcher.depth == BATCH.queue
        work.go.set()
        await asyncio.gather(*taken)
        await batcher.submit(one())[0]


def test_what_was_cancelled_is_left_out():
    work = Slow()

    @running(work)
    async def _(batcher):
        first = batcher.submit(one())
        await asyncio.to_thread(work.entered.wait, 20)
        rest = [batcher.submit(one(value))[0] for value in (1.0, 2.0, 3.0)]
        rest[1].cancel()
        first[0].cancel()
        work.go.set()
        found = await asyncio.gather(rest[0], rest[2])
        np.testing.assert_allclose(
            [each.scores.score[0] for each in found], table_detector().score(rows_of([1.0, 3.0])).score
        )

    assert work.batches == [[1], [1, 1]]


def test_an_error_is_that_of_its_own_request():
    work = Slow(fail=lambda values: bool((values == 7).any()))

    @running(work)
    async def _(batcher):
        first = batcher.submit(one())
        await asyncio.to_thread(work.entered.wait, 20)
        good, bad, fine = (batcher.submit(one(value))[0] for value in (1.0, 7.0, 2.0))
        work.go.set()
        await asyncio.gather(*first, good, fine)
        with pytest.raises(InputError, match="poisoned"):
            await bad

    assert work.batches == [[1], [1, 1, 1], [1], [1], [1]]


def test_stopping_finishes_what_was_taken():
    work = Slow()

    async def whole():
        batcher = Batcher(work, BATCH)
        with pytest.raises(Refusal) as early:
            batcher.submit(one())
        batcher.start()
        taken = [batcher.submit(one(value))[0] for value in range(5)]
        stopping = asyncio.ensure_future(batcher.stop())
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as late:
            batcher.submit(one())
        assert early.value.status == late.value.status == 503
        work.go.set()
        await stopping
        assert all(future.done() for future in taken)
        return [future.result().scores.score[0] for future in taken]

    np.testing.assert_allclose(asyncio.run(whole()), table_detector().score(rows_of(range(5))).score)


def slow_app(settings):
    client = Client(table_detector(), settings)
    work = Slow()
    client.service.batcher._work = work
    return client, work


ROW = {"inputs": columns(rate=[0.0], like=[0.0])}
PATH = "/v2/models/detector/infer"
SCOPE = {"type": "http", "method": "POST", "path": PATH, "headers": [], "query_string": b"",
         "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"},
         "server": ("localhost", 80), "client": ("127.0.0.1", 1)}  # fmt: skip


def test_sixty_four_clients_lose_nothing():
    client = Client(table_detector())
    table = rows(640, 5)
    expected = table_detector().score(table).score

    async def whole():
        async with client_of(client.app) as http:

            async def ask(first):
                found = []
                for row in range(first, 640, 64):
                    values = {name: [float(table[name][row])] for name in table.names}
                    answer = await http.post(PATH, json={"inputs": columns(**values)})
                    found.append((row, outputs(answer)["score"][0]))
                return found

            return [pair for part in await asyncio.gather(*map(ask, range(64))) for pair in part]

    found = dict(asyncio.run(whole()))
    np.testing.assert_allclose([found[row] for row in range(640)], expected)
    assert client.service.stream.rows == 640
    lines = client.get("/metrics").text.splitlines()
    batches = next(float(line.split()[1]) for line in lines if line.startswith("dose_batch_rows_count"))
    assert batches < 320  # they were gathered


def test_a_request_that_takes_too_long_is_answered_and_forgotten():
    client, work = slow_app(Settings(timeout=0.2))

    async def whole():
        async with client_of(client.app) as http:
            late = await http.post(PATH, json=ROW)
            work.go.set()
            return late, await http.post(PATH, json=ROW)

    late, fine = asyncio.run(whole())
    assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
    assert "within 0.2 seconds" in late.json()["error"]
    assert fine.status_code == 200
    assert client.service.stream.rows == 1


@pytest.mark.parametrize(("settings", "status", "taken"), [
    (Settings(queue=2, batch=1), 429, 3),
    (Settings(requests=2), 503, 2),
])  # fmt: skip
def test_a_full_service_says_so_and_recovers(settings, status, taken):
    client, work = slow_app(settings)

    async def whole():
        async with client_of(client.app) as http:
            first = asyncio.ensure_future(http.post(PATH, json=ROW))
            await asyncio.to_thread(work.entered.wait, 20)
            work.entered.clear()
            rest = {asyncio.ensure_future(http.post(PATH, json=ROW)) for _ in range(6)}
            refused = set()
            while len(refused) < 7 - taken:
                done, _ = await asyncio.wait(rest - refused, timeout=20, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
            work.go.set()
            answers = await asyncio.gather(first, *rest)
            return answers, await http.post(PATH, json=ROW)

    if settings.batch > 1:  # what has joined the first is not refused
        client.service.batcher._settings = Settings(batch=1)
    answers, after = asyncio.run(whole())
    assert sorted(each.status_code for each in answers) == [200] * taken + [status] * (7 - taken)
    assert all(each.headers["Retry-After"] == "1" for each in answers if each.status_code != 200)
    assert after.status_code == 200
    assert client.service.stream.rows == taken + 1


def test_a_client_that_goes_away_is_left_out():
    client, work = slow_app(Settings())

    async def whole():
        async with client_of(client.app):
            gone = asyncio.Event()
            sent = []

            async def send(message):
                sent.append(message)

            running = asyncio.ensure_future(client.app({**SCOPE}, receiving(ROW, gone), send))
            await asyncio.to_thread(work.entered.wait, 20)
            waiting = asyncio.ensure_future(client.app({**SCOPE}, receiving(ROW, gone), send))
            await asyncio.sleep(0.05)
            gone.set()
            await asyncio.gather(running, waiting)
            work.go.set()
            return [message["status"] for message in sent if "status" in message]

    assert asyncio.run(whole()) == [499, 499]
    assert work.batches == [[1]]
    assert client.service.bodies.held == 0
    assert client.service.stream.rows == 0


def test_a_client_that_goes_away_while_it_sends_is_no_error(caplog):
    client = Client(table_detector())

    async def whole():
        messages = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"rate", "more_body": True}]
        sent = []

        async def receive():
            return messages.pop()

        async def send(message):
            sent.append(message)

        async with client_of(client.app):
            await client.app({**SCOPE, "path": "/score"}, receive, send)
        return sent[0]["status"]

    assert asyncio.run(whole()) == 499
    assert not caplog.records
    assert client.service.bodies.held == 0


def receiving(document, gone):
    body = [{"type": "http.request", "body": json.dumps(document).encode()}]

    async def receive():
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def test_a_slow_client_is_cut_off_and_others_are_not_kept_waiting():
    client = Client(table_detector(), Settings(upload_timeout=0.3))

    async def trickle():
        yield b"rate,like\n"
        await asyncio.sleep(30)
        yield b"0,0\n"

    async def whole():
        async with client_of(client.app) as http:
            slow = asyncio.ensure_future(http.post("/score", content=trickle(), headers={"Content-Type": "text/csv"}))
            await asyncio.sleep(0.05)
            fast = await http.post(PATH, json=ROW)
            return fast, slow.done(), await slow

    fast, was_done, slow = asyncio.run(whole())
    assert fast.status_code == 200
    assert not was_done
    assert (slow.status_code, slow.json()["error"]) == (408, "expected the body within 0.3 seconds, got 10 bytes")
    assert client.service.bodies.held == 0


def test_an_error_of_the_model_is_a_500_that_tells_no_secret():
    client = Client(table_detector())

    def broken(batch):
        raise RuntimeError("/secret/path")

    client.service.batcher._work = broken
    answer = client.infer(ROW)
    assert (answer.status_code, answer.json()["error"]) == (
        500,
        "the service failed: RuntimeError; its log has more",
    )
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
