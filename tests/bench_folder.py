"""A small folder such as `dose bench` makes: a toy flow, two models and a background model, three outlier sets."""

import json
from pathlib import Path

import numpy as np

from dose_ood.benchmark.evaluate import evaluate, extremes, score
from dose_ood.benchmark.probes import probe
from dose_ood.benchmark.results import HELD_OUT, TEST, TRAIN, Folder, Study
from dose_ood.benchmark.toys import flow
from dose_ood.noise import generator
from dose_ood.statistics import Statistics

HOSTILE = '"><img src=x onerror=alert(1)> & $_{'  # a set's name may be anything that a file's may
OUTLIERS = {"far": "elsewhere:test", "hflip": "<i>toy:test:hflip", HOSTILE: "javascript:alert(1)"}
STUDY = Study("<i>toy", OUTLIERS, "<b>glow</b>", "<u>tiny", 2, 400, 7)
SEEDS = {TRAIN: 0, HELD_OUT: 1, TEST: 2, "far": 3, "hflip": 4, HOSTILE: 5}
MEMBERS = ("0", "1", "background")
PROVENANCE = {
    "commands": ["dose bench <toy> --ood '</pre><script>'", "dose report"],
    "versions": {"dose_ood": "0.1", "</dl>": "<script>alert(2)</script>"},
    "seconds": 12.5,
    "data": [{"sha256": "0" * 64}, {"<b>": [1, 2]}],
}


def table(member: str, name: str, rows: int) -> Statistics:
    """The toy flow as a member sees it; `hflip` is as the test set is."""
    drawn = flow(rows, outlier=name not in (TRAIN, HELD_OUT, TEST, "hflip"), seed=SEEDS[name])
    noise = 5 * generator(f"member {member}", SEEDS[name]).normal(size=(rows, 2))
    latent, jac = drawn["latent"] + noise[:, 0], drawn["jac"] + noise[:, 1]
    more = {"jac/0": jac / 2, "mix/0": noise.sum(axis=1)}
    return Statistics.from_columns({"like": latent + jac, "latent": latent, "jac": jac, **more})


def pictures(name: str, rows: int, channels: int = 1) -> np.ndarray:
    """Images of noise whose brightness tells their row: row r has the mean grey level r / rows · 200."""
    noise = generator("pictures", SEEDS[name]).integers(0, 30, (rows, channels, 8, 8))
    return (noise + (200 * np.arange(rows) / rows).astype(int)[:, None, None, None]).astype(np.uint8)


def write_folder(path: Path, *, images: bool = True, runs: bool = True, rows: int = 400) -> Path:
    """Make the folder; without images or runs, as results are that were committed."""
    folder = Folder(path)
    for name in SEEDS:
        count = rows if name == TRAIN else rows // 2
        for member in MEMBERS:
            folder.statistics(member, name).parent.mkdir(parents=True, exist_ok=True)
            table(member, name, count).write(folder.statistics(member, name))
        folder.probe(name).parent.mkdir(exist_ok=True)
        probe(pictures(name, count)).write(folder.probe(name))
    scored = list(score(folder, STUDY))
    training = {member: {"held_out": 6000.0, "bits_per_dim": 3.5, "seconds": 12.0, "epochs": 3.0} for member in MEMBERS}
    evaluate(folder, STUDY, scored, training, PROVENANCE).write(folder.results)
    if images:
        (path / "images").mkdir()
        for name in (TEST, *OUTLIERS):
            kept = extremes(scored, name)
            np.savez(folder.images(name), images=pictures(name, rows // 2)[kept], rows=kept)
    for member in MEMBERS if runs else ():
        folder.run(member).mkdir(parents=True)
        lines = [
            {"step": step, "loss": 7000 - step, "held_out": None if step % 60 else 7010.0 - step}
            for step in range(20, 301, 20)
        ]
        (folder.run(member) / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
