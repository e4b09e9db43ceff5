"""Does the service keep the model busy? Requests of 64 clients on loopback against the model's own batches.

python benchmarks/service.py runs/fashion-vae-0 fashion_mnist:test --output results/service.json    # about 3 minutes

Three processes: the service, the model alone, and this one, which asks. They take turns, so that whatever else the
machine does meets both sides alike: each turn of the service is compared with the model's turns before and after it,
and the median ratio is reported. Processor time is reported too, which others on the machine disturb less. Every
request is one image, as JSON or as a binary tensor. Run it on an idle machine with more cores than threads.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dose_ood import Detector, ProductKDE, Statistics
from dose_ood.data.images import read_images
from dose_ood.guard import Guard, with_model
from dose_ood.measure import measure
from dose_ood.models.registry import load_model

Images = NDArray[np.uint8]
BATCHES = (64, 256)
ROWS = 600  # to fit and to calibrate: how many does not change the speed
NAME = "benchmark"


@dataclass(frozen=True)
class Load:
    """What clients saw of the service in one round."""

    answers: int
    lost: int
    seconds: float
    latencies: list[float]
    processor: float

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


@dataclass(frozen=True)
class Server:
    """A running service."""

    port: int
    process: int

    def processor(self) -> float:
        """Seconds that it kept a processor busy."""
        times = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """The most that it ever held, in MiB."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024


def requests_of(images: Images, binary: bool) -> list[bytes]:
    """Whole HTTP requests, made before the clock starts."""
    made = []
    for image in images:
        tensor: dict[str, object] = {"name": "images", "shape": [1, *image.shape], "datatype": "UINT8"}
        tensor |= {"parameters": {"binary_data_size": image.size}} if binary else {"data": image.ravel().tolist()}
        outputs = [{"name": name, "parameters": {"binary_data": binary}} for name in ("score", "p_value", "is_typical")]
        body = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
        length = f"Inference-Header-Content-Length: {len(body)}\r\n" if binary else ""
        kind = "octet-stream" if binary else "json"
        body += image.tobytes() if binary else b""
        head = (
            f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/{kind}\r\n"
            f"{length}Content-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


async def load(server: Server, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Clients that ask, wait for the answer, and ask again."""
    latencies: list[float] = []
    lost = 0
    processor = server.processor()
    started = monotonic()
    end = started + seconds

    async def client(first: int) -> None:
        nonlocal lost
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        position = first
        while (sent := monotonic()) < end:
            writer.write(requests[position % len(requests)])
            position += clients
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            assert size is not None
            await reader.readexactly(int(size[1]))
            if head.startswith(b"HTTP/1.1 200"):
                latencies.append(monotonic() - sent)
            else:
                lost += 1
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*map(client, range(clients)))
    return Load(len(latencies), lost, monotonic() - started, latencies, server.processor() - processor)


def alone(detector: Path, data: str, seconds: float) -> None:
    """The model's own speed: for every line that comes in, images per second by size of batch go out."""
    guard, images = Guard.load(detector), read_images(data)
    guard.score(images[:64])
    print("ready", flush=True)
    for _ in sys.stdin:
        rates = {}
        for batch in BATCHES:
            started, busy, done = monotonic(), process_time(), 0
            while monotonic() - started < seconds / len(BATCHES):
                first = done % (len(images) - batch)
                guard.score(images[first : first + batch].copy())
                done += batch
            rates[str(batch)] = done / (monotonic() - started)
            rates[f"{batch} ms"] = 1000 * (process_time() - busy) / done
        print(json.dumps(rates), flush=True)


@contextmanager
def service(detector: Path, environment: dict[str, str]) -> Iterator[Server]:
    """A service, as long as the block lasts."""
    command = [sys.executable, "-m", "dose_ood", "serve", str(detector), "--port", "0", "--name", NAME]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None, line + process.stderr.read()
        try:
            yield Server(int(found[1]), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def build(run: Path, images: Images, folder: Path) -> Path:
    """A detector that holds the run's model."""
    loaded = load_model(run / "model" if (run / "model").is_dir() else run)
    table = measure(loaded.model, images[: 2 * ROWS])
    train, held_out = (Statistics(table.names, table.values[part]) for part in (slice(ROWS), slice(ROWS, None)))
    with_model(Detector.fit(train, held_out, ProductKDE()), loaded).save(folder / "detector")
    return folder / "detector"


def ask(model: "subprocess.Popen[str]") -> dict[str, float]:
    """The speed of the model alone at this moment, by size of batch."""
    assert model.stdin is not None
    assert model.stdout is not None
    print(file=model.stdin, flush=True)
    found: dict[str, float] = json.loads(model.stdout.readline())
    return found


def rounds(options: argparse.Namespace, detector: Path, images: Images) -> dict[str, object]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    requests = {"json": requests_of(images, False), "binary": requests_of(images, True)}
    found: list[dict[str, object]] = []
    latencies: dict[str, list[float]] = {kind: [] for kind in requests}
    lost = answers = 0
    command = [sys.executable, __file__, "--alone", str(detector), options.data, "--seconds", str(options.seconds)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as model,
        service(detector, environment) as server,
    ):
        assert model.stdin is not None
        assert model.stdout is not None
        assert model.stdout.readline() == "ready\n"
        asyncio.run(load(server, requests["binary"], options.clients, 1.0))  # warm
        resting = server.memory()
        before = ask(model)
        for _ in range(options.rounds):
            row: dict[str, object] = {}
            for kind, made in requests.items():
                got = asyncio.run(load(server, made, options.clients, options.seconds))
                after = ask(model)
                rates = {batch: (before[batch] + after[batch]) / 2 for batch in after}
                before, lost, answers = after, lost + got.lost, answers + got.answers
                latencies[kind] += got.latencies
                row[kind] = {
                    "model": rates,
                    "service": got.rate,
                    "ratio": got.rate / max(rates[str(batch)] for batch in BATCHES),
                    "processor": 1000 * got.processor / got.answers,
                }
            found.append(row)
            Console(stderr=True).print(row)
        most = server.memory()
        model.stdin.close()
    return {
        "requests": answers,
        "lost": lost,
        "memory (MiB)": {"after the first second": round(resting), "most": round(most)},
        **{kind: summary([row[kind] for row in found], latencies[kind]) for kind in requests},
    }


def summary(found: Sequence[object], latencies: Sequence[float]) -> dict[str, object]:
    """The median round, and latencies over all of them."""
    made = [each for each in found if isinstance(each, dict)]
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "requests/s": statistics.median(each["service"] for each in made),
        "model alone, images/s": {
            str(batch): statistics.median(each["model"][str(batch)] for each in made) for batch in BATCHES
        },
        "ratio": statistics.median(each["ratio"] for each in made),
        "ratios": [each["ratio"] for each in made],
        "processor, ms an image": {
            "service": statistics.median(each["processor"] for each in made),
            "model alone": statistics.median(min(each["model"][f"{b} ms"] for b in BATCHES) for each in made),
        },
        "p50 (ms)": 1000 * float(p50),
        "p99 (ms)": 1000 * float(p99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of dose train")
    parser.add_argument("data", help="images such as it was trained on")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each part of a round")
    parser.add_argument("--threads", type=int, default=1, help="of the model, here and there")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(options.run, options.data, options.seconds)
        return
    images = read_images(options.data)
    with tempfile.TemporaryDirectory() as folder:
        result = rounds(options, build(options.run, images, Path(folder)), images[:2000])
    command = f"python benchmarks/service.py {options.run} {options.data} --output {options.output}"
    load_average = [round(each, 2) for each in os.getloadavg()]
    facts = {"command": command, "clients": options.clients, "threads": options.threads, "cores": os.cpu_count()}
    whole = {**facts, "load average at the end": load_average, **result}
    if options.output is None:
        Console().print_json(json.dumps(whole))
    else:
        options.output.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
