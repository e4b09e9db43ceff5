"""What is remembered of the stream: how much was flagged, whether it has drifted, what was flagged last."""

from collections import deque
from dataclasses import dataclass
from time import monotonic, time

import numpy as np

from dose_ood.decision.group import GroupTest, GroupVerdict
from dose_ood.detector import Detector
from dose_ood.errors import InputError
from dose_ood.service.explaining import finite, samples_of
from dose_ood.service.judge import Verdicts
from dose_ood.service.settings import Settings

BUCKET, BUCKETS = 5.0, 60  # seconds, and how many: the last five minutes
EARLY = (25, 100)  # rows after which a smaller window is tested already


@dataclass
class _Bucket:
    number: int
    rows: int = 0
    flagged: int = 0


@dataclass(frozen=True, eq=False)
class _Flagged:
    number: int
    when: float
    verdicts: Verdicts


class Stream:
    """The last scores and flagged samples, in bounded memory; used in the event loop alone.

    Parameters
    ----------
    detector
        Gives the group test of the drift gauge.
    settings
        The window, its rate of false alarms, and how many flagged samples are kept.
    """

    def __init__(self, detector: Detector, settings: Settings) -> None:
        self.detector = detector
        self.rows = self.flagged = self.bad = 0
        self._scores: deque[float] = deque(maxlen=settings.window)
        self._verdicts: deque[bool] = deque(maxlen=settings.window)
        self._kept: deque[_Flagged] = deque(maxlen=settings.kept)
        self._buckets: deque[_Bucket] = deque(maxlen=BUCKETS)
        self._start = monotonic()
        self._latencies: deque[float] = deque(maxlen=1000)
        self.no_test = ""
        self._tests: list[GroupTest] = []
        try:
            sizes = [*(size for size in EARLY if size < settings.window), settings.window]
            self._tests = [detector.group_test(size, settings.alpha) for size in sizes]
        except InputError as error:
            self.no_test = str(error)

    def see(self, verdicts: Verdicts) -> None:
        """Take note of what was judged."""
        flagged = np.flatnonzero(~verdicts.scores.is_typical)
        self._scores.extend(verdicts.scores.score.tolist())
        self._verdicts.extend((~verdicts.scores.is_typical).tolist())
        bucket = self._bucket()
        bucket.rows += len(verdicts)
        bucket.flagged += len(flagged)
        now = time()
        for number, row in list(enumerate(flagged.tolist(), self.flagged + 1))[-(self._kept.maxlen or 1) :]:
            # A copy: a view would keep the whole batch.
            self._kept.append(_Flagged(number, now, verdicts.at(np.array([row]))))
        self.rows += len(verdicts)
        self.flagged += len(flagged)
        self.bad += int(verdicts.scores.is_bad.sum())

    def took(self, seconds: float) -> None:
        """Take note of how long an answer took."""
        self._latencies.append(seconds)

    @property
    def recent_share(self) -> float | None:
        """The share flagged in the window, None before the first row."""
        return sum(self._verdicts) / len(self._verdicts) if self._verdicts else None

    def drift(self) -> GroupVerdict | None:
        """The group test on the last scores, as many as a test is for; None before there are enough.

        A row that could not be measured makes the gap infinite until it leaves the window, as in `dose drift`.
        """
        for test in reversed(self._tests):
            if len(self._scores) >= test.size:
                return test.test(np.array(self._scores)[-test.size :])
        return None

    def state(self) -> dict[str, object]:
        """What the live view shows."""
        self._bucket()
        drift, latency = self.drift(), np.array(self._latencies)
        return {
            "rows": self.rows,
            "flagged": self.flagged,
            "bad": self.bad,
            "window": {"rows": len(self._verdicts), "size": self._scores.maxlen, "flagged_share": self.recent_share},
            "expected_share": self.detector.estimator.discard,
            "drift": None
            if drift is None
            else {
                "gap": finite(drift.gap),
                "threshold": drift.threshold,
                "p_value": drift.p_value,
                "drifted": drift.drifted,
                "size": drift.size,
            },
            "first_test": self._tests[0].size if self._tests else None,
            "no_drift_test": self.no_test or None,
            "history": {"seconds": BUCKET, "buckets": [[each.rows, each.flagged] for each in self._buckets]},
            "latency": {f"p{q}": float(np.percentile(latency, q)) if len(latency) else None for q in (50, 99)},
            "latest": [self._told(each) for each in reversed(self._kept)],
        }

    def _told(self, flagged: _Flagged) -> dict[str, object]:
        (sample,) = samples_of(self.detector, flagged.verdicts, [0])
        return {"number": flagged.number, "time": flagged.when, **sample}

    def _bucket(self) -> _Bucket:
        """The bucket of this moment; quiet ones before it are filled in."""
        number = int((monotonic() - self._start) / BUCKET)
        last = self._buckets[-1].number if self._buckets else number - 1
        for missing in range(max(last + 1, number - BUCKETS + 1), number + 1):
            self._buckets.append(_Bucket(missing))
        return self._buckets[-1]
