"""The app: `create_app(detector)` puts the parts together."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import cast

import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ExceptionHandler

from dose_ood.detector import Detector
from dose_ood.errors import InputError
from dose_ood.service import protocol
from dose_ood.service.batching import Batcher
from dose_ood.service.bodies import Bodies
from dose_ood.service.explaining import charts, samples_of
from dose_ood.service.gate import Gate, Rules
from dose_ood.service.judge import Judge, Samples, Verdicts
from dose_ood.service.live import Stream
from dose_ood.service.metrics import TEXT, Metrics
from dose_ood.service.settings import Refusal, Settings, too_busy
from dose_ood.service.uploads import Taste, read_upload

PAGE = Path(__file__).parent / "page"
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
DECODERS = 2  # uploads decoded at once
EXPLAINED, MOST_EXPLAINED = 20, 100


def create_app(
    detector: Detector,
    settings: Settings | None = None,
    *,
    name: str = "detector",
    token: str | None = None,
    hosts: Sequence[str] = (),
) -> FastAPI:
    """An ASGI app that judges samples.

    Parameters
    ----------
    detector
        If it holds a model, it takes images too, which needs torch.
    settings
        Bounds of memory and time.
    name
        What the Open Inference Protocol calls the detector.
    token
        What callers must send as `Authorization: Bearer TOKEN`; None to ask for nothing.
    hosts
        The host names under which it may be called, empty for any.
    """
    settings = settings or Settings()
    service = Service(detector, settings, name)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        try:
            yield
        finally:
            await service.batcher.stop()

    app = FastAPI(title="dose-ood", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    routes: tuple[tuple[str, str, Callable[..., Awaitable[Response]]], ...] = (
        ("/score", "POST", service.score),
        ("/detector", "GET", service.describe),
        ("/stream", "GET", service.live),
        ("/metrics", "GET", service.prometheus),
        ("/v2/health/live", "GET", service.alive),
        ("/v2/health/ready", "GET", service.ready),
        ("/v2", "GET", service.server),
        ("/v2/models/{model}", "GET", service.model),
        ("/v2/models/{model}/ready", "GET", service.model_ready),
        ("/v2/models/{model}/infer", "POST", service.infer),
        *((path, "GET", service.asset) for path in ASSETS),
    )
    for path, method, handler in routes:
        app.add_api_route(path, handler, methods=[method], response_class=Response)
    for kind, answer in ((Refusal, _refused), (HTTPException, _not_here)):
        app.add_exception_handler(kind, cast("ExceptionHandler", answer))
    app.add_middleware(Gate, rules=Rules(token, hosts, settings.requests), answered=service.metrics.answered)
    app.state.service = service
    return app


class Service:
    """The parts of one service, and an answer for each kind of request.

    Parameters
    ----------
    detector
        Gives the verdicts.
    settings
        Bounds of memory and time.
    name
        What the protocol calls the detector.
    """

    def __init__(self, detector: Detector, settings: Settings, name: str) -> None:
        self.detector, self.settings, self.name = detector, settings, name
        self.judge = Judge(detector)
        self.taste = Taste(detector.statistics, self.judge.shape)
        self.stream = Stream(detector, settings)
        self.batcher = Batcher(self.judge, settings, lambda rows, seconds: self.metrics.batch(rows, seconds))
        self.metrics = Metrics(self.stream, lambda: self.batcher.depth)
        self.bodies = Bodies(settings)
        self._decoders = asyncio.Semaphore(DECODERS)
        self._assets = {path: (PAGE / file).read_bytes() for path, (file, _) in ASSETS.items()}
        self._description = json.dumps(self._describe()).encode()

    async def verdicts(self, request: Request, samples: Samples) -> Verdicts:
        """The verdicts on a request's samples, unless it takes too long or the client goes away."""
        started = monotonic()
        whole = asyncio.gather(*self.batcher.submit(samples))
        gone = asyncio.ensure_future(request.receive())  # after the body, only a disconnection can come
        try:
            both: set[asyncio.Future[object]] = {cast("asyncio.Future[object]", each) for each in (whole, gone)}
            done, _ = await asyncio.wait(both, timeout=self.settings.timeout, return_when=asyncio.FIRST_COMPLETED)
            if whole not in done:
                if gone in done:
                    raise Refusal(499, "the client went away")
                raise too_busy(503, f"expected an answer within {self.settings.timeout:g} seconds, and it took longer")
            found = Verdicts.joined(whole.result())
        except InputError as error:
            raise Refusal(422, str(error)) from error
        finally:
            gone.cancel()
            whole.cancel()
        self.stream.see(found)
        self.stream.took(monotonic() - started)
        flagged, bad = (int(np.count_nonzero(each)) for each in (~found.scores.is_typical, found.scores.is_bad))
        self.metrics.judged(len(found), flagged, bad)
        return found

    async def infer(self, request: Request, model: str) -> Response:
        """The Open Inference Protocol's question."""
        self._check_model(model)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/octet-stream"):
            raise Refusal(415, f"expected application/json or application/octet-stream, got {kind[:60]!r}")
        async with self.bodies.read(request) as body:
            query = protocol.parse(body, request.headers.get(protocol.LENGTH), self.taste, self.settings)
            found = await self.verdicts(request, query.samples)
            content, headers = protocol.render(query, found, self.name, self.taste)
        return Response(content, headers=headers)

    async def score(self, request: Request) -> Response:
        """Verdicts on an upload, the least typical samples explained.

        The query may have `explain`, how many samples are explained, and `reconstruct=true`.
        """
        count = _count(request.query_params.get("explain", str(EXPLAINED)))
        reconstruct = request.query_params.get("reconstruct") == "true"
        async with self.bodies.read(request) as body:
            kind = request.headers.get("content-type", "application/octet-stream")
            async with self._decoders:
                samples = await asyncio.to_thread(read_upload, body, kind, self.taste, self.settings)
            if reconstruct and samples.images is not None:
                samples = Samples(images=samples.images, reconstruct=True)
            found = await self.verdicts(request, samples)
        return _json(await asyncio.to_thread(self._scored, found, count))

    def _scored(self, found: Verdicts, count: int) -> dict[str, object]:
        scores = found.scores
        rows = np.argsort(scores.score, kind="stable")[:count]
        return {
            "rows": len(found),
            "atypical": int(np.count_nonzero(~scores.is_typical)),
            "bad": int(np.count_nonzero(scores.is_bad)),
            "threshold": float(self.detector.estimator.offset_),
            **{each: protocol.plain(values) for each, values in vars(scores).items()},
            "samples": samples_of(self.detector, found, rows.tolist()),
        }

    async def describe(self) -> Response:
        """What the page needs to know of the detector."""
        return Response(self._description, media_type="application/json")

    def _describe(self) -> dict[str, object]:
        estimator, settings = self.detector.estimator, self.settings
        return {
            "name": self.name,
            "method": estimator.kind,
            "statistics": self.detector.statistics,
            "threshold": float(estimator.offset_),
            "discard": estimator.discard,
            "rows": {"train": int(estimator.n_train_), "held_out": len(estimator.calibration_scores_)},
            "shape": self.judge.shape,
            "reconstructs": self.judge.reconstructs,
            "charts": charts(self.detector),
            "limits": {"body": settings.body, "images": settings.images, "rows": settings.rows},
        }

    async def live(self) -> Response:
        """What the live view shows."""
        return _json({**self.stream.state(), "queue": self.batcher.depth})

    async def prometheus(self) -> Response:
        """The metrics."""
        return Response(self.metrics.text(), media_type=TEXT)

    async def alive(self) -> Response:
        """The process runs."""
        return _json({"live": True})

    async def ready(self) -> Response:
        """Work is taken."""
        self._check_ready()
        return _json({"ready": True})

    async def server(self) -> Response:
        """The protocol's description of the server."""
        return _json(protocol.server_metadata())

    async def model(self, model: str) -> Response:
        """The protocol's description of the detector."""
        self._check_model(model)
        return _json(protocol.model_metadata(self.name, self.taste))

    async def model_ready(self, model: str) -> Response:
        """The detector can be asked."""
        self._check_model(model)
        self._check_ready()
        return _json({"name": self.name, "ready": True})

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        path = request.url.path
        return Response(self._assets[path], media_type=ASSETS[path][1], headers={"Cache-Control": "no-cache"})

    def _check_model(self, model: str) -> None:
        if model != self.name:
            raise Refusal(404, f"expected the model {self.name!r}, got {model[:80]!r}")

    def _check_ready(self) -> None:
        if not self.batcher.ready:
            raise too_busy(503, "the service is not taking work: it is starting or shutting down")


def _json(value: Mapping[str, object]) -> Response:
    return Response(json.dumps(value, allow_nan=False), media_type="application/json")


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 6 or int(text) > MOST_EXPLAINED:
        raise Refusal(422, f"explain: expected a number from 0 to {MOST_EXPLAINED}, got {text[:40]!r}")
    return int(text)


async def _refused(_: Request, refusal: Refusal) -> Response:
    return _said(refusal.status, refusal.message, refusal.headers)


async def _not_here(request: Request, error: HTTPException) -> Response:
    path = request.url.path[:120]
    allowed = dict(error.headers or {}).get("Allow", "another method")
    said = {
        404: f"expected one of /, /score, /detector, /stream, /metrics and /v2, got {path!r}",
        405: f"expected {allowed} at {path}, got {request.method}",
    }
    return _said(error.status_code, said.get(error.status_code, str(error.detail)), error.headers or {})


def _said(status: int, message: str, headers: Mapping[str, str]) -> Response:
    return Response(json.dumps({"error": message}), status, media_type="application/json", headers={**headers})
