"""What a set in the data folder is, by its content: the original, a known variant, or something else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from dose_ood.data.catalogue import CATALOGUE, DataSet
from dose_ood.data.folder import RECORD, names_in, path_of, read_arrays, read_record
from dose_ood.data.images import fingerprint
from dose_ood.errors import InputError
from dose_ood.tables import explaining

Status: TypeAlias = Literal["original", "variant", "recorded", "unknown", "changed", "broken"]
GOOD: tuple[Status, ...] = ("original", "variant", "recorded")


@dataclass(frozen=True)
class Verdict:
    """What a set was found to be.

    Parameters
    ----------
    status
        original, variant (known to differ), recorded (as it was when it came in), unknown, changed (not as recorded)
        or broken (unreadable).
    says
        The same in words.
    sha256
        Content hash of every array.
    """

    name: str
    status: Status
    says: str
    sha256: Mapping[str, str]

    @property
    def is_bad(self) -> bool:
        """Whether a set of the catalogue is not what it should be, or any set cannot be read or has changed."""
        return self.status in ("changed", "broken") or (self.status == "unknown" and self.name in CATALOGUE)


def verify(folder: Path, names: list[str] | None = None) -> list[Verdict]:
    """Every set in the folder, or those named."""
    missing = [name for name in names or [] if not path_of(name, folder).exists()]
    if missing:
        raise InputError(f"{missing[0]} is not in the data folder ({folder}); there: {', '.join(names_in(folder))}")
    return [verify_set(name, folder) for name in (names_in(folder) if names is None else names)]


def verify_set(name: str, folder: Path) -> Verdict:
    """Hash the arrays of one set, one at a time, and compare."""
    hashes, record, path = {}, {}, path_of(name, folder)
    try:
        with explaining(f"cannot read {path}"):
            for key, array in read_arrays(path):
                if key == RECORD:
                    record = read_record(array)
                else:
                    hashes[key] = fingerprint(np.atleast_1d(array))
    except InputError as error:
        return Verdict(name, "broken", str(error), {})
    recorded = record.get("sha256")
    if isinstance(recorded, dict) and recorded != hashes:
        return Verdict(name, "changed", "not what was put in: remove the file and fetch it again", hashes)
    return judge(name, hashes, str(record["source"]) if recorded and "source" in record else None)


def judge(name: str, hashes: Mapping[str, str], source: str | None = None) -> Verdict:
    """What these content hashes tell of a set, which came from `source` if that was recorded."""
    if name in CATALOGUE:
        data_set = CATALOGUE[name]
        if _agrees(hashes, data_set.sha256):
            return Verdict(name, "original", f"the original set{_without(hashes, data_set)}", hashes)
        for variant in data_set.variants:
            if _agrees(hashes, variant.sha256):
                return Verdict(name, "variant", f"a known variant: {variant.differs}", hashes)
    if source is not None:
        return Verdict(name, "recorded", f"as it came from {source}", hashes)
    return Verdict(name, "unknown", "unknown content", hashes)


def _agrees(hashes: Mapping[str, str], known: Mapping[str, str]) -> bool:
    """Whether there are images, and everything that can be compared is the same."""
    images = {"train_x", "test_x"} & {*hashes}
    return bool(images) and images <= {*known} and all(hashes[key] == known[key] for key in {*hashes} & {*known})


def _without(hashes: Mapping[str, str], data_set: DataSet) -> str:
    missing = [key for key in data_set.sha256 if key not in hashes]
    return f", without {', '.join(missing)}" if missing else ", every image and label"
