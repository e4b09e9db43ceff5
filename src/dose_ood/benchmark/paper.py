"""The paper's Table 1 as data: AUROC by in-distribution set, outlier set and method, as printed.

*Density of States Estimation for Out-of-Distribution Detection* (Morningstar et al., 2020)
"""

from collections.abc import Mapping

COLUMNS = ("likelihood", "waic", "typicality", "likelihood_ratio", "kde", "svm")
MODELS = {"mnist": "vae", "fashion_mnist": "vae", "cifar10": "glow", "svhn": "glow", "celeba": "glow"}
RANKS = {"likelihood": 2.2, "waic": 3.06, "typicality": 2.7, "likelihood_ratio": 4.19, "kde": 1.2, "svm": 1.2}
SAMPLE = "_sample"  # ends the name of a small part of a data set, which is looked up as the whole

_ROWS = {
    "mnist": {
        "omniglot": (1.000, 1.000, 1.000, 0.470, 1.000, 1.000),
        "fashion_mnist": (0.998, 0.988, 0.997, 0.404, 0.999, 0.996),
        "uniform": (1.000, 1.000, 1.000, 0.277, 1.000, 1.000),
        "gaussian": (1.000, 1.000, 1.000, 0.228, 1.000, 1.000),
        "hflip": (0.839, 0.861, 0.776, 0.473, 0.760, 0.812),
        "vflip": (0.838, 0.821, 0.837, 0.499, 0.818, 0.830),
    },
    "fashion_mnist": {
        "omniglot": (0.995, 0.893, 0.991, 0.508, 1.000, 0.998),
        "mnist": (0.931, 0.950, 0.901, 0.503, 0.998, 0.997),
        "uniform": (0.998, 0.878, 0.998, 0.573, 1.000, 0.998),
        "gaussian": (0.997, 0.852, 0.997, 0.501, 1.000, 0.998),
        "hflip": (0.658, 0.503, 0.599, 0.479, 0.658, 0.625),
        "vflip": (0.702, 0.473, 0.635, 0.485, 0.748, 0.728),
    },
    "cifar10": {
        "cifar100": (0.520, 0.532, 0.548, 0.520, 0.569, 0.571),
        "celeba": (0.914, 0.928, 0.848, 0.914, 0.976, 0.995),
        "svhn": (0.064, 0.143, 0.870, 0.064, 0.973, 0.955),
        "imagenet32": (0.794, 0.870, 0.754, 0.795, 0.914, 0.930),
        "uniform": (1.000, 1.000, 1.000, 1.000, 1.000, 1.000),
        "gaussian": (1.000, 1.000, 1.000, 1.000, 1.000, 1.000),
        "hflip": (0.501, 0.499, 0.500, 0.501, 0.507, 0.502),
        "vflip": (0.505, 0.505, 0.501, 0.505, 0.533, 0.523),
    },
    "svhn": {
        "celeba": (1.000, 0.991, 1.000, 0.912, 1.000, 1.000),
        "cifar10": (0.990, 0.802, 0.970, 0.819, 0.988, 0.962),
        "cifar100": (0.989, 0.831, 0.965, 0.779, 0.986, 0.965),
        "imagenet32": (0.998, 0.980, 0.994, 0.916, 0.999, 0.999),
        "uniform": (1.000, 1.000, 1.000, 1.000, 1.000, 1.000),
        "gaussian": (1.000, 1.000, 1.000, 1.000, 1.000, 1.000),
        "hflip": (0.504, 0.502, 0.499, 0.502, 0.520, 0.512),
        "vflip": (0.502, 0.504, 0.500, 0.501, 0.510, 0.511),
    },
    "celeba": {
        "cifar10": (0.404, 0.507, 0.634, 0.323, 0.861, 0.949),
        "cifar100": (0.427, 0.535, 0.671, 0.357, 0.867, 0.956),
        "svhn": (0.008, 0.139, 0.982, 0.028, 0.993, 0.997),
        "imagenet32": (0.705, 0.837, 0.775, 0.596, 0.995, 0.998),
        "uniform": (1.000, 0.961, 1.000, 1.000, 1.000, 1.000),
        "gaussian": (1.000, 1.000, 1.000, 1.000, 1.000, 1.000),
        "hflip": (0.600, 0.754, 0.526, 0.529, 0.945, 0.985),
        "vflip": (0.706, 0.734, 0.602, 0.606, 0.983, 0.998),
    },
}
TABLE_1: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    inlier: {outlier: dict(zip(COLUMNS, row, strict=True)) for outlier, row in rows.items()}
    for inlier, rows in _ROWS.items()
}


def paper_auroc(inlier: str, outlier: str, method: str, model: str | None = None) -> float | None:
    """What the paper reports, if it does; with a model's name, only if it trained that model on the set.

    Examples
    --------
    >>> paper_auroc("fashion_mnist", "mnist", "kde"), paper_auroc("fashion_mnist_sample", "mnist", "kde")
    (0.998, 0.998)
    >>> paper_auroc("mnist", "cifar10", "kde"), paper_auroc("mnist", "omniglot", "kde", "glow")
    (None, None)
    """
    name = inlier.removesuffix(SAMPLE)
    if model is not None and MODELS.get(name) != model:
        return None
    return TABLE_1.get(name, {}).get(outlier, {}).get(method)
