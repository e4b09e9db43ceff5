"""The images of a benchmark's report: the most and the least typical ones, samples and reconstructions."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.results import METHODS, TEST, Results
from dose_ood.data.images import png_bytes
from dose_ood.errors import InputError
from dose_ood.report.curves import ends
from dose_ood.report.evidence import Evidence, by_gain
from dose_ood.report.html import picture, th

Images = NDArray[np.uint8]
EACH, SIDE = 16, 4  # images of a corner of the confusion matrix, in rows of so many
BUDGET = 1_500_000  # bytes of pictures in a page
GAP = 128  # the grey between images, for light and dark pages


@dataclass(frozen=True)
class Drawn:
    """What a model draws: samples, and for some sets images and their reconstructions."""

    samples: Images
    pairs: Mapping[str, tuple[Images, Images]]


@dataclass(frozen=True)
class Mosaics:
    """For each method and set, pictures of the most and least typical images; and the sets there was no room for."""

    corners: Mapping[str, Mapping[str, tuple[bytes, bytes]]]
    without: Sequence[str] = field(default_factory=tuple)

    def files(self) -> dict[str, bytes]:
        """By their names, the pictures."""
        return {
            f"{METHODS[method]} {name} {end}": png
            for method, sets in self.corners.items()
            for name, pair in sets.items()
            for end, png in zip(("most", "least"), pair, strict=True)
        }


def hidden_sets(results: Results, names: Sequence[str], every: bool = False) -> frozenset[str]:
    """The sets whose pixels are not shown: those named, and those made from a data set that is named.

    Parameters
    ----------
    results
        Of the benchmark.
    names
        Names of outlier sets or of data sets; a data set takes its flips with it.
    every
        Whether no pixels are shown at all.
    """
    sources = {TEST: results.study.inlier, **results.study.outliers}
    known = {name: {name, Path(source.partition(":")[0]).stem} for name, source in sources.items()}
    for name in names:
        if not any(name in called for called in known.values()):
            everything = ", ".join(sorted(set().union(*known.values())))
            raise InputError(f"cannot leave out {name!r}: expected one of {everything}")
    return frozenset(set_ for set_, called in known.items() if every or called & set(names))


def mosaics(evidence: Evidence, hidden: Collection[str], budget: int = BUDGET) -> Mosaics:
    """The confusion mosaic of each method (Figure 3), for as many outlier sets as there is room for."""
    sources = evidence.results.study.outliers
    sets = sorted(by_gain(evidence.results, evidence.outliers), key=lambda name: sources[name].endswith("noise"))
    shown = [name for name in (TEST, *sets) if name in evidence.images]  # noise looks like noise, and is large: last
    corners: dict[str, dict[str, tuple[bytes, bytes]]] = {method: {} for method in evidence.scores}
    without, left = [], budget
    for name in (name for name in shown if name not in hidden):
        made = {method: _corners(evidence, method, name) for method in evidence.scores}
        left -= sum(len(png) for pair in made.values() for png in pair)
        if left < 0:
            without.append(name)
        for method, pair in made.items() if left >= 0 else ():
            corners[method][name] = pair
    return Mosaics({method: sets for method, sets in corners.items() if sets}, without)


def _corners(evidence: Evidence, method: str, name: str) -> tuple[bytes, bytes]:
    kept, scores = evidence.images[name], evidence.scores[method][name]
    if kept.rows.min() < 0 or kept.rows.max() >= len(scores):
        raise InputError(f"the images of {name} name row {kept.rows.max()}, but its table has {len(scores)}")
    most, least = ends(scores[kept.rows], EACH)
    return png_bytes(kept.images[most], SIDE, gap=GAP), png_bytes(kept.images[least], SIDE, gap=GAP)


def mosaic(method: str, sets: Mapping[str, tuple[bytes, bytes]]) -> str:
    """The mosaic of one method as a block."""
    lines = []
    for name, (most, least) in sets.items():
        label = "in-distribution" if name == TEST else name
        cells = "".join(
            f"<td>{picture(png, f'{EACH} {end} typical images of {label}, by {METHODS[method]}')}</td>"
            for end, png in (("most", most), ("least", least))
        )
        lines.append(f"<tbody><tr>{th(label, 'rowgroup', columns=2)}</tr><tr>{cells}</tr></tbody>")
    head = "".join(th(text, "col") for text in ("most typical", "least typical"))
    inside = f"<thead><tr>{head}</tr></thead>{''.join(lines)}"
    return f"<div><h3>{METHODS[method]}</h3><table>{inside}</table></div>"


def sample_pictures(drawn: Drawn, hidden: Collection[str]) -> dict[str, bytes]:
    """Samples, and of each set that may be shown images above their reconstructions."""
    pictures = {} if TEST in hidden else {"samples": png_bytes(drawn.samples, 8, gap=GAP)}
    for name, (images, again) in drawn.pairs.items():
        if name not in hidden:
            pictures[f"reconstructions {name}"] = png_bytes(np.concatenate([images, again]), len(images), gap=GAP)
    return pictures


def reconstructions(
    evidence: Evidence, reconstruct: Callable[[Images], Images], count: int = 8
) -> dict[str, tuple[Images, Images]]:
    """A few images of each set and what a model makes of them."""
    pairs = {}
    for name, kept in evidence.images.items():
        spread = np.unique(np.linspace(0, len(kept.images) - 1, min(count, len(kept.images))).round().astype(int))
        images = np.ascontiguousarray(kept.images[spread])
        pairs[name] = (images, reconstruct(images))
    return pairs
