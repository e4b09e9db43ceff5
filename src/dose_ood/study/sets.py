"""The sets of a benchmark: the parts of the in-distribution data, and the outliers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.paper import SAMPLE
from dose_ood.benchmark.results import HELD_OUT, TEST, TRAIN
from dose_ood.data.images import fingerprint, read_images, split
from dose_ood.data.shifts import SHIFTS
from dose_ood.errors import InputError
from dose_ood.noise import generator

Images: TypeAlias = NDArray[np.uint8]

OTHERS: dict[tuple[int, ...], tuple[str, ...]] = {  # data sets by the shape of their images
    (1, 28, 28): ("mnist", "fashion_mnist", "omniglot"),
    (3, 32, 32): ("cifar10", "cifar100", "svhn", "celeba", "imagenet32"),
}
SHIFTED = {"uniform": "uniform_noise", "gaussian": "gaussian_noise", "hflip": "hflip", "vflip": "vflip"}


@dataclass(frozen=True, eq=False)
class Sets:
    """The images of a study, read when they are asked for.

    Parameters
    ----------
    inlier
        The source of the in-distribution data.
    outliers
        For each outlier set, its name and its source; `:hflip` is that shift of the test set.
    rows
        The most rows of a set; None: all.
    seed
        Draws the split and the rows.
    training
        All images that models are trained on, those held out included.
    has_test
        Whether the data have a test part; if not, half of the held-out images are the test set.
    skipped
        A sentence for each usual outlier set that is not there.
    """

    inlier: str
    outliers: Mapping[str, str]
    rows: int | None
    seed: int
    training: Images
    has_test: bool
    skipped: tuple[str, ...] = ()
    _known: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every set: train, held_out, test and the outliers."""
        return (TRAIN, HELD_OUT, TEST, *self.outliers)

    @property
    def data(self) -> str:
        """The name of the data set, by which a recipe chooses its likelihood."""
        return base_name(self.inlier)

    def images(self, name: str) -> Images:
        """The images of a set, at most `rows` of them, in the order of the data."""
        images = self._all(name)
        if images.shape[1:] != self.training.shape[1:]:
            where = f"{name} ({self.outliers[name]})" if name in self.outliers else f"the {name} part of {self.inlier}"
            raise InputError(
                f"{where}: expected images of shape {self.training.shape[1:]}, as those the models are trained on, "
                f"got {images.shape[1:]}; nothing is resized"
            )
        if self.rows is None or len(images) <= self.rows:
            return images
        chosen = generator(f"rows of {name}", self.seed).permutation(len(images))[: self.rows]
        return images[np.sort(chosen)]

    def known(self, name: str) -> tuple[int, str]:
        """The number of rows of a set and the checksum of its images."""
        if name not in self._known:
            images = self.images(name)
            self._known[name] = (len(images), fingerprint(images))
        return self._known[name]

    def _all(self, name: str) -> Images:
        parts = split(len(self.training), self.seed)
        if name == TRAIN:
            return self.training[parts.train]
        if name == TEST and self.has_test:
            return read_images(f"{self.inlier}:test")
        if name in (HELD_OUT, TEST):
            return self.training[parts.held_out if self.has_test else self._half(parts.held_out, name)]
        source = self.outliers[name]
        return SHIFTS[source[1:]](self._all(TEST), 0) if source[:1] == ":" else read_images(source)

    def _half(self, rows: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        order = generator("halves of the held-out part", self.seed).permutation(rows)
        middle = len(order) // 2
        if not middle:
            raise InputError(f"{self.inlier}: expected a test part, or enough images to hold out two, got {len(rows)}")
        return np.sort(order[:middle] if name == HELD_OUT else order[middle:])


def open_sets(inlier: str, ood: Sequence[str], rows: int | None, seed: int) -> Sets:
    """The sets of a study, all of which can be read.

    Parameters
    ----------
    inlier
        The in-distribution data, as `read_images` takes them.
    ood
        Outlier sets as SOURCE or NAME=SOURCE; none: the usual ones for images of this shape that are there.
    rows, seed
        As in `Sets`.
    """
    training = read_images(inlier)
    has_test = _can_be_read(f"{inlier}:test")
    wanted = named(ood) if ood else usual(inlier, training.shape[1:])
    outliers, skipped = {}, []
    for name, source in wanted.items():
        try:
            resolved = _resolve(source, inlier, has_test)
            if resolved[0] != ":":
                read_images(resolved)
        except InputError as error:
            if ood:
                raise
            skipped.append(f"{name} is left out: {error}")
        else:
            outliers[name] = resolved
    found = Sets(inlier, outliers, rows, seed, training, has_test, tuple(skipped))
    if not outliers:
        raise InputError("expected at least one outlier set, got none")
    for name in found.names:
        found.known(name)  # refuses what has another shape
    return found


def usual(inlier: str, shape: tuple[int, ...]) -> dict[str, str]:
    """The outliers of the paper for images of a shape: the other data sets, noise, and flips of the test set.

    Examples
    --------
    >>> list(usual("fashion_mnist", (1, 28, 28)))
    ['mnist', 'omniglot', 'uniform', 'gaussian', 'hflip', 'vflip']
    >>> usual("mnist_sample", (1, 28, 28))["fashion_mnist"]
    'fashion_mnist_sample:test'
    """
    own = base_name(inlier)
    sampled = inlier.partition(":")[0].endswith(SAMPLE)
    others = [name for name in OTHERS.get(shape, ()) if name != own]
    sources = {name: f"{name}{SAMPLE if sampled and name != 'omniglot' else ''}:test" for name in others}
    return sources | {name: f":{shift}" for name, shift in SHIFTED.items()}


def named(ood: Sequence[str]) -> dict[str, str]:
    """Outlier sets by name, from SOURCE or NAME=SOURCE.

    Examples
    --------
    >>> named(["mnist", "odd=new.npz", "hflip", "svhn:test:vflip"])
    {'mnist': 'mnist', 'odd': 'new.npz', 'hflip': ':hflip', 'svhn_vflip': 'svhn:test:vflip'}
    """
    result: dict[str, str] = {}
    for text in ood:
        name, equals, source = text.partition("=")
        if not equals:
            name, source = _name_of(text), f":{SHIFTED[text]}" if text in SHIFTED else text
        if not re.fullmatch(r"\w[\w.-]*", name) or name in (TRAIN, HELD_OUT, TEST):
            raise InputError(f"--ood {text}: expected a name of letters and digits for the set; say NAME={source}")
        if name in result:
            raise InputError(f"--ood {text}: there is another set called {name}; say OTHERNAME={source}")
        if not source:
            raise InputError(f"--ood {text}: expected NAME=SOURCE, got no source")
        result[name] = source
    return result


def base_name(source: str) -> str:
    """The name of a data set without part, folder, suffix and `_sample`."""
    return Path(source.partition(":")[0]).stem.removesuffix(SAMPLE)


def _name_of(source: str) -> str:
    """A name for a set: that of its data, and of a shift of them."""
    short = {shift: name for name, shift in SHIFTED.items()}
    place, *rest = source.split(":")
    shifts = [short[part] for part in rest if part in short]
    return "_".join([*([Path(place).stem] if place else []), *shifts])


def _resolve(source: str, inlier: str, has_test: bool) -> str:
    """The source as `read_images` takes it; a data set by its name alone means its test part, if it has one."""
    if source[:1] == ":":
        if source[1:] not in SHIFTS:
            raise InputError(f"{source}: expected a shift of {', '.join(f':{shift}' for shift in SHIFTS)}")
        return f"{inlier}:test{source}" if has_test else source
    return f"{source}:test" if ":" not in source and _can_be_read(f"{source}:test") else source


def _can_be_read(source: str) -> bool:
    try:
        read_images(source)
    except InputError:
        return False
    return True
