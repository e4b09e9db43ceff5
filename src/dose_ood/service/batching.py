"""Requests of many clients become batches of one model, and batches become answers again."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from dose_ood.service.judge import Samples, Verdicts
from dose_ood.service.settings import Settings, too_busy

Work = Callable[[Sequence[Samples]], list[Verdicts]]
Look = Callable[[int, float], None]


@dataclass(frozen=True, eq=False)
class _Piece:
    samples: Samples
    share: float
    future: "asyncio.Future[Verdicts]"
    arrived: float


class Batcher:
    """One thread that owns the model, fed from a bounded queue.

    A batch is what waits when the worker becomes free; if that does not fill it, the worker waits until the oldest
    piece has waited for `wait` seconds. What nobody waits for any more is left out. If a batch raises, its pieces are
    tried one by one, so that an error is that of its own request.

    Parameters
    ----------
    work
        Judges a batch; called in the worker's thread alone.
    settings
        The size of a batch, of the queue, and the wait.
    look
        Is told the rows and seconds of every batch, in the event loop.
    """

    def __init__(self, work: Work, settings: Settings, look: Look = lambda rows, seconds: None) -> None:
        self._work, self._settings, self._look = work, settings, look
        self._waiting: deque[_Piece] = deque()
        self._share = 0.0
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def depth(self) -> int:
        """Pieces that wait."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether work is taken."""
        return self._thread is not None and not self._closing

    def start(self) -> None:
        """Start the worker; called in the event loop that answers go to."""
        self._loop, self._closing = asyncio.get_running_loop(), False
        self._thread = threading.Thread(target=self._run, name="dose-model", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Finish what was taken, then end the worker."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            await asyncio.sleep(0)  # the last answers are on their way through the loop
            self._thread = None

    def submit(self, samples: Samples) -> "list[asyncio.Future[Verdicts]]":
        """Put samples into the queue, all or none; a future for each piece of them."""
        if self._loop is None or not self.ready:
            raise too_busy(503, "the service is not taking work: it is starting or shutting down")
        now, batch = monotonic(), self._settings.batch
        pieces = [_Piece(part, part.share(batch), self._loop.create_future(), now) for part in samples.pieces(batch)]
        with self._changed:
            if len(self._waiting) + len(pieces) > self._settings.queue:
                raise too_busy(
                    429, f"expected at most {self._settings.queue} batches' worth of work in the queue, and it is full"
                )
            idle = not self._waiting
            self._waiting.extend(pieces)
            self._share += sum(piece.share for piece in pieces)
            if idle or self._share >= 1:
                self._changed.notify()
        return [piece.future for piece in pieces]

    def _run(self) -> None:
        while batch := self._gather():
            alive = [piece for piece in batch if not piece.future.done()]
            if alive:
                started = monotonic()
                outcomes = self._outcomes(alive)
                self._answer(alive, outcomes, monotonic() - started)

    def _gather(self) -> list[_Piece]:
        """The next batch; none when the service ends."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            while self._waiting and self._share < 1 and not self._closing:
                left = self._waiting[0].arrived + self._settings.wait - monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            batch: list[_Piece] = []
            full = 0.0
            while self._waiting and (not batch or full + self._waiting[0].share <= 1 + 1e-9):
                full += self._waiting[0].share
                batch.append(self._waiting.popleft())
            self._share = self._share - full if self._waiting else 0.0
            return batch

    def _outcomes(self, pieces: Sequence[_Piece]) -> list[Verdicts | Exception]:
        try:
            return list(self._work([piece.samples for piece in pieces]))
        except Exception as error:
            if len(pieces) == 1:
                return [error]
        return [outcome for piece in pieces for outcome in self._outcomes([piece])]

    def _answer(self, pieces: Sequence[_Piece], outcomes: Sequence[Verdicts | Exception], seconds: float) -> None:
        def deliver() -> None:
            for piece, outcome in zip(pieces, outcomes, strict=True):
                if piece.future.done():
                    continue
                if isinstance(outcome, Exception):
                    piece.future.set_exception(outcome)
                else:
                    piece.future.set_result(outcome)
            self._look(sum(len(piece.samples) for piece in pieces), seconds)

        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed without a stop
                self._loop.call_soon_threadsafe(deliver)
