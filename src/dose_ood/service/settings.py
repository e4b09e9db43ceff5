"""What the service allows, and how it says no."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from dose_ood.decision.conformal import check_share
from dose_ood.errors import InputError

MIB = 2**20


@dataclass(frozen=True)
class Settings:
    """Bounds of a service; each is a promise about its memory or its time.

    Parameters
    ----------
    batch
        Images that the model gets at once, at the most.
    wait
        Seconds that a request may wait for others to join its batch.
    queue
        Pieces of work that may wait; a request of up to `batch` images is one piece.
    timeout
        Seconds from a request's last byte to its answer.
    upload_timeout
        Seconds for the body to arrive.
    requests
        Requests under way at once.
    body
        Bytes of a request's body.
    bodies
        Bytes of all bodies under way.
    images, rows
        Images, and rows of a table, in a request.
    decoded
        Bytes that an upload may become.
    window
        Scores that the drift gauge looks back on.
    alpha
        The drift gauge's rate of false alarms.
    kept
        Flagged samples kept to be looked at; 0 keeps none.
    """

    batch: int = 64
    wait: float = 0.005
    queue: int = 512
    timeout: float = 30.0
    upload_timeout: float = 15.0
    requests: int = 1024
    body: int = 16 * MIB
    bodies: int = 64 * MIB
    images: int = 512
    rows: int = 100_000
    decoded: int = 64 * MIB
    window: int = 500
    alpha: float = 0.01
    kept: int = 12

    def __post_init__(self) -> None:
        """Check every bound."""
        check_share("alpha", self.alpha)
        for each in fields(self):
            least = 0 if each.name in ("wait", "kept") else 2 if each.name == "window" else None
            value = getattr(self, each.name)
            if not (value > 0 if least is None else value >= least):
                expected = "positive" if least is None else f"at least {least}"
                raise InputError(f"{each.name} must be {expected}, got {value}")


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818  # it is an answer, not a failure
    """An answer that says no, in one sentence.

    Parameters
    ----------
    status
        The HTTP status.
    message
        What was expected and what came.
    headers
        More headers of the answer.
    """

    status: int
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


def too_busy(status: int, message: str) -> Refusal:
    """A refusal that is worth another try."""
    return Refusal(status, message, {"Retry-After": "1"})
