"""The command that serves a detector. It imports FastAPI and uvicorn only when it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dose_ood import zoo
from dose_ood.cli.console import err
from dose_ood.cli.table import DetectorPath
from dose_ood.detector import Detector
from dose_ood.errors import InputError

SERVING = ("fastapi", "starlette", "uvicorn", "prometheus_client")


def serve(
    detector: DetectorPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Other addresses than this machine's own need a token.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that callers must send.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name in /v2/models/NAME. Default: the directory's.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images that the model gets at once, at the most.")] = 64,
    wait: Annotated[float, typer.Option(min=0, help="Milliseconds to wait for a batch to fill.")] = 5.0,
    window: Annotated[int, typer.Option(min=2, help="Rows that the drift gauge looks back on.")] = 500,
    keep: Annotated[int, typer.Option(min=0, help="Flagged samples shown on the page; 0 remembers none.")] = 12,
) -> None:
    """Serve a detector over HTTP, with a page to drop files on.

    Speaks the Open Inference Protocol (`/v2/models/NAME/infer`), takes an uploaded picture, .npy, Parquet or CSV at
    `/score`, and tells Prometheus at `/metrics`. Requests of many clients are judged in batches. SIGTERM and Ctrl-C
    finish what was accepted.

    If the detector holds its model (`dose fit --model`), it takes images; otherwise tables of its statistics.
    """
    with needs_serving():
        from dose_ood.service.run import read_token
        from dose_ood.service.run import serve as run
        from dose_ood.service.settings import Settings
    settings = Settings(batch=batch, wait=wait / 1000, window=window, kept=keep)
    token = None if token_file is None else read_token(token_file)
    chosen = name or zoo.directory(detector).resolve().name

    def started(address: str) -> None:
        asks = "asks for the token" if token is not None else "no token"
        err.print(f"serving {chosen} at {address} ({asks}); Ctrl-C ends it", markup=False)

    run(Detector.load(detector), settings, name=chosen, host=host, port=port, token=token, started=started)


@contextmanager
def needs_serving() -> Iterator[None]:
    """Say in one sentence what is missing, if something is."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SERVING:
            raise
        raise InputError('dose serve needs FastAPI and uvicorn: pip install "dose-ood[serve]"') from None
