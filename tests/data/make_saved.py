"""Write the folders of saved/ with the library of that format: `python tests/data/make_saved.py`, given `datasets`."""

from pathlib import Path

import numpy as np
from PIL import Image

if __name__ == "__main__":
    import datasets

    folder = Path(__file__).parent / "saved"
    with np.load(folder / "truth.npz") as truth:
        grey, colour = truth["g"], truth["c"]

    def pictures(images):
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
        columns = {"image": [Image.fromarray(image) for image in images], "label": list(range(len(images)))}
        return datasets.Dataset.from_dict(columns, features=features)

    parts = {"train": pictures(grey), "test": pictures(grey[::-1])}
    datasets.DatasetDict(parts).save_to_disk(str(folder / "dict"))
    features = datasets.Features({"pixels": datasets.Array3D(colour.shape[1:], "uint8")})
    datasets.Dataset.from_dict({"pixels": colour}, features=features).save_to_disk(str(folder / "array"))
