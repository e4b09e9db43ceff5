"""Draw the sample that ships in the package from the full sets: `DOSE_DATA=FOLDER python tests/data/make_sample.py`."""

import io
import sys
import zipfile
from pathlib import Path

import numpy as np

from dose_ood.data.folder import SAMPLES, data_folder, path_of
from dose_ood.noise import generator

DRAWN = {"fashion_mnist": {"train": 8000, "test": 2000}, "mnist": {"test": 2000}}


def rows(name, part, total):
    """The rows of a full set that are drawn, in increasing order."""
    drawn = generator(f"sample of {name} {part}").permutation(total)[: DRAWN[name][part]]
    return np.sort(drawn)


def sample(name):
    """The arrays of a sample, from the full set in the data folder."""
    arrays = {}
    with np.load(path_of(name, data_folder()), allow_pickle=False) as full:
        for part in DRAWN[name]:
            chosen = rows(name, part, len(full[f"{part}_y"]))
            arrays |= {f"{part}_{kind}": full[f"{part}_{kind}"][chosen] for kind in "xy"}
    return arrays


def write(path, arrays):
    """An .npz whose bytes depend on the arrays (and on zlib) alone."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    for name in DRAWN:
        write(path_of(f"{name}_sample", folder), sample(name))
