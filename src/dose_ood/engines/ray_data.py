"""The adapter for Ray Data: work as `map_batches` over actors that are made once. Needs ray when it runs."""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dose_ood.engines.engine import Work
from dose_ood.errors import InputError

STORE_BYTES = 128 * 2**20  # of a local Ray: items and results are small, rows do not pass through it
AHEAD = 2  # items handed to an actor at a time, so that it need not wait for the next


@dataclass(frozen=True)
class RayEngine:
    """Applies work to items with Ray Data.

    Every worker is an actor on one CPU. If one dies, Ray starts another, which does its items again. A Ray that this
    process has started or joined already is used and left alone.

    Parameters
    ----------
    workers
        Number of actors; by default all CPUs of the Ray it runs on.
    address
        Of a cluster to join, as `ray.init` takes it ("auto", "HOST:6379", "ray://HOST:10001"); by default, a Ray is
        started on this machine and stopped at the end. Machines of a cluster need the package, and the same paths.
    """

    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work before any work."""
        if self.workers is not None and self.workers < 1:
            raise InputError(f"workers must be at least 1, got {self.workers}")
        try:
            import ray.data  # noqa: F401
        except ModuleNotFoundError as error:
            raise InputError('the engine ray needs the package ray: pip install "dose-ood[ray]"') from error

    def __call__(self, make: Callable[[], Work], items: Sequence[str], /) -> Iterator[bytes]:
        """The result of each item, in their order."""
        import ray.data
        from ray.exceptions import RayError

        with self._joined(), _configured():
            size = min(self.workers or int(ray.cluster_resources().get("CPU", 1)), len(items))
            rows = ray.data.from_arrow([pa.table({"item": [item]}) for item in items])
            results = rows.map_batches(
                _Actor,
                batch_size=None,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=AHEAD),
                fn_constructor_args=(make,),
                num_cpus=1,
            )
            try:
                for row in results.iter_rows():
                    if row["error"] is not None:
                        raise InputError(row["error"])
                    yield row["result"]
            except RayError as error:
                said = str(error).strip().splitlines()[-1]
                raise InputError(f"the run on Ray failed, and can be resumed: {said}") from error

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """A Ray to work on."""
        import ray

        if ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        start = partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
        try:
            if self.address is None:
                os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
                start(num_cpus=self.workers, include_dashboard=False, object_store_memory=STORE_BYTES)
            else:
                check_address(self.address)
                start(address=self.address)
        except InputError:
            raise
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = str(error).strip().splitlines()[0]
            raise InputError(f"cannot join the Ray at {self.address or 'this machine'}: {said}") from error
        try:
            yield
        finally:
            ray.shutdown()


def check_address(address: str) -> None:
    """Refuse HOST:PORT where nobody listens: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot join the Ray at {address}: {error}") from error


class _Actor:
    """Holds the work of one worker. What the work refuses travels as text, so that it stays one sentence."""

    def __init__(self, make: Callable[[], Work]) -> None:
        self.work: Work | InputError
        try:
            self.work = make()
        except InputError as error:
            self.work = error

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        for item in table["item"].to_pylist():
            result, refusal = None, None
            try:
                if isinstance(self.work, InputError):
                    raise self.work
                result = self.work(item)
            except InputError as error:
                refusal = str(error)
            yield pa.table({"result": pa.array([result], pa.binary()), "error": pa.array([refusal], pa.string())})


@contextmanager
def _configured() -> Iterator[None]:
    """Ray Data in order, and without its bars and its log on the terminal, for the time being."""
    from ray.data import DataContext

    context, logger = DataContext.get_current(), logging.getLogger("ray.data")
    before = context.enable_progress_bars, context.execution_options.preserve_order, logger.level
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        context.enable_progress_bars, context.execution_options.preserve_order = before[:2]
        logger.setLevel(before[2])
