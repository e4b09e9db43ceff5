"""Work that kills its worker."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Mortal:
    """Work during which a worker is killed, once for all workers: half a part has been written then."""

    make: Callable[[], Callable[[str], bytes]]
    victim: str
    notes: Path
    always: bool = False

    def __post_init__(self):
        self.work = self.make()

    def __call__(self, item):
        if self.victim in item and (self.always or not (self.notes / "killed").exists()):
            (self.notes / "killed").write_text(str(os.getpid()))
            verdicts = self.work._verdicts

            def until_killed(piece):
                yield next(verdicts(piece))
                os.kill(os.getpid(), signal.SIGKILL)

            self.work._verdicts = until_killed
        found = self.work(item)
        with (self.notes / f"{os.getpid()}").open("a") as file:
            file.write(item + "\n")
        return found
