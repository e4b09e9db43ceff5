"""What Prometheus is told."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from dose_ood.service.live import Stream

TEXT = CONTENT_TYPE_LATEST
SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192, 32768)


class Metrics:
    """Counts and gauges of one service, in a registry of its own.

    Parameters
    ----------
    stream
        Where shares and drift are read when somebody asks.
    depth
        Gives the number of pieces in the queue.
    """

    def __init__(self, stream: Stream, depth: Callable[[], int]) -> None:
        self._stream = stream
        self._registry = known = CollectorRegistry()
        self._requests = Counter("dose_requests", "Requests answered.", ["endpoint", "status"], registry=known)
        self._seconds = Histogram(
            "dose_request_seconds", "Seconds from request to answer.", ["endpoint"], buckets=SECONDS, registry=known
        )
        self._batches = Histogram("dose_batch_rows", "Rows judged at once.", buckets=ROWS, registry=known)
        self._batch_seconds = Histogram("dose_batch_seconds", "Seconds of a batch.", buckets=SECONDS, registry=known)
        self._rows = Counter("dose_rows", "Rows judged.", registry=known)
        self._flagged = Counter("dose_flagged_rows", "Rows found atypical.", registry=known)
        self._bad = Counter("dose_bad_rows", "Rows with a statistic that is not finite.", registry=known)
        Gauge("dose_queue_depth", "Pieces of work that wait.", registry=known).set_function(depth)
        self._share = Gauge("dose_flagged_share", "Share of the window's rows found atypical.", registry=known)
        self._drift_p = Gauge(
            "dose_drift_p_value", "p-value of the window's group test; small = drift.", registry=known
        )
        self._gap = Gauge("dose_drift_gap", "Distance of the window's mean score from training's.", registry=known)
        self._threshold = Gauge("dose_drift_threshold", "The gap above which the window has drifted.", registry=known)
        self._drifted = Gauge("dose_drifted", "1 if the window has drifted, else 0.", registry=known)
        self._size = Gauge("dose_drift_window_rows", "Rows that the group test looked at.", registry=known)

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        self._batches.observe(rows)
        self._batch_seconds.observe(seconds)

    def judged(self, rows: int, flagged: int, bad: int) -> None:
        """Count rows."""
        self._rows.inc(rows)
        self._flagged.inc(flagged)
        self._bad.inc(bad)

    def text(self) -> bytes:
        """All of it as Prometheus reads it; gauges that do not apply yet are NaN."""
        stream, nan = self._stream, float("nan")
        share, drift = stream.recent_share, stream.drift()
        self._share.set(nan if share is None else share)
        self._drift_p.set(nan if drift is None else drift.p_value)
        self._gap.set(nan if drift is None else drift.gap)
        self._threshold.set(nan if drift is None else drift.threshold)
        self._drifted.set(nan if drift is None else drift.drifted)
        self._size.set(0 if drift is None else drift.size)
        return generate_latest(self._registry)
