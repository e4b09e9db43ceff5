"""What the commands on tables do with images, if a detector holds its model; needs torch."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from rich.progress import Progress

from dose_ood.cli.models import load, needs_torch
from dose_ood.data.images import read_images
from dose_ood.detector import Detector
from dose_ood.statistics import Batch

with needs_torch():
    from dose_ood.guard import Guard, with_model

BATCH = 256  # images at a time


def holding(detector: Detector, run: Path) -> Detector:
    """The detector with the model of a run inside."""
    return with_model(detector, load(run))


def image_batches(detector: Detector, where: str, source: str, bar: Progress) -> Iterator[Batch]:
    """The statistics of images, a batch at a time, while a bar shows how far they have come."""
    guard, images = Guard.of(detector, where), read_images(source)
    guard.check(images)
    task = bar.add_task(f"measuring {source}", total=len(images))
    for first in range(0, len(images), BATCH):
        rows = guard.measure(images[first : first + BATCH], batch=BATCH)
        yield Batch(rows, pa.record_batch([], names=[]), first)
        bar.advance(task, len(rows))
