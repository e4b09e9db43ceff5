"""What the tests of the service share: small detectors, and a client that talks to an app in memory."""

import asyncio
import io
import json
import struct
import zlib
from contextlib import asynccontextmanager
from functools import cache

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dose_ood import Detector, ProductKDE, Statistics
from dose_ood.guard import with_model
from dose_ood.measure import measure
from dose_ood.models.registry import Loaded, build
from dose_ood.models.vae import VAEConfig
from dose_ood.noise import generator
from dose_ood.service.app import create_app
from standin import stripes

NAMES = ("rate", "like")
ODD = {"rate": 9.0, "like": 0.0}


def rows(count, seed=0):
    return Statistics(NAMES, generator("service rows", seed).normal(size=(count, 2)))


@cache
def table_detector(method=ProductKDE):
    return Detector.fit(rows(600), rows(400, 1), method())


@cache
def image_detector():
    model = build(VAEConfig(shape=(1, 8, 8), depth=4, components=5), seed=3).eval()
    fitted = Detector.fit(
        measure(model, stripes(150)), measure(model, stripes(120, seed=1)), ProductKDE(), ("rate", "iwae")
    )
    return with_model(fitted, Loaded(model, {}))


@asynccontextmanager
async def client_of(app, token=None):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            yield client


class Client:
    """Requests to an app, one at a time."""

    def __init__(self, detector, settings=None, **options):
        self.app = create_app(detector, settings, **options)
        self.service = self.app.state.service

    def __call__(self, method, path, **options):
        async def ask():
            async with client_of(self.app) as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path, **options):
        return self("GET", path, **options)

    def post(self, path, content=b"", kind="application/octet-stream", headers=None, **options):
        headers = {"content-type": kind, **(headers or {})} if kind else headers
        return self("POST", path, content=content, headers=headers, **options)

    def infer(self, document, tail=b"", name="detector", **options):
        head = json.dumps(document).encode()
        length = {"Inference-Header-Content-Length": str(len(head))} if tail else {}
        return self.post(f"/v2/models/{name}/infer", head + tail, "application/json", length, **options)


@cache
def shared(detector, settings=None):
    """A client that tests share, since a service takes a while to make."""
    return Client(detector, settings)


def outputs(answer):
    return {each["name"]: each.get("data") for each in answer.json()["outputs"]}


def columns(**named):
    return [
        {"name": name, "shape": [len(values)], "datatype": "FP64", "data": list(values)}
        for name, values in named.items()
    ]


def images_input(images):
    return {
        "name": "images",
        "shape": list(images.shape),
        "datatype": "UINT8",
        "data": images.reshape(-1).tolist(),
    }


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(pixels, width=None, height=None):
    """A picture, written by hand so that its head can lie about its size."""
    found_height, found_width = pixels.shape[:2]
    colour = 0 if pixels.ndim == 2 else {3: 2, 4: 6}[pixels.shape[2]]
    head = struct.pack(">IIBBBBB", width or found_width, height or found_height, 8, colour, 0, 0, 0)
    lines = b"".join(b"\0" + pixels[row].tobytes() for row in range(found_height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def parquet(table, **options):
    file = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(table), file, **options)
    return file.getvalue()
