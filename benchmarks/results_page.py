"""Writes the tables of RESULTS.md and docs/differences.md from what is kept in results/, between marks, and figures.

    python benchmarks/results_page.py            # both pages, in place, and their figures in results/
    python benchmarks/results_page.py --check    # says whether they are up to date; the tests ask the same

A mark is `<!-- table fashion_mnist -->`, and what follows it up to `<!-- end -->` is written anew from
`results/fashion_mnist/results.json`. `<!-- summary -->` has what DoSE finds of every pair, and `<!-- ranks -->` the
ranks of all methods over those that the paper has; `<!-- statistics fashion_mnist -->` has each statistic alone,
`<!-- moves cifar10 -->` how far outliers move it to each of the models, `<!-- more cifar10 -->` what more statistics
find: a Glow's of single levels, its score tests, those of all models together. A figure has the statistics that model 0
gives, of the test set and of other data sets, as histograms.

Other marks are written from what other benchmarks have kept: `<!-- alike cifar10 -->` what is found where all images
were changed alike, `<!-- patience -->` what Glows find the longer they are trained, `<!-- sizes -->` the same of wider
ones and longer runs, `<!-- grids -->` what the grid does on which faces were made small, `<!-- exits cifar10 -->` and
`<!-- points cifar10 -->` what another recipe of a Glow changes, `<!-- grey mnist -->` what a Glow finds instead of the
VAEs, and `<!-- ceiling cifar10 -->` what a classifier that knows the answer makes of statistics.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import grey_glow
import variants
from common import PAPERS, STATISTICS
from dose_ood import ProductKDE
from dose_ood.benchmark.evaluate import headline, read
from dose_ood.benchmark.methods import DOSE, estimator, plain, side_by_side
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.paper import RANKS, paper_auroc
from dose_ood.benchmark.results import ENSEMBLE, HELD_OUT, METHODS, TEST, TRAIN, Folder, Results
from dose_ood.benchmark.significance import average_ranks
from dose_ood.decision.memorisation import expected_calibration_error, score_bins
from dose_ood.density.base import DensityOfStates
from dose_ood.plots.style import svg_file
from dose_ood.plots.tables import histograms
from dose_ood.statistics import Statistics
from dose_ood.study.sets import SHIFTED
from glance import Pair, glance

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "RESULTS.md", ROOT / "docs/differences.md")
TOGETHER = "ensemble"  # the last of the kinds of statistics that there are, of all models side by side
KINDS = (*STATISTICS, TOGETHER)
BLOCK = re.compile(
    r"<!-- (?P<what>table|summary|statistics|moves|more|alike|patience|sizes|grids|grey|exits|points|ceiling|ranks)"
    r"(?: (?P<name>\S+))? -->\n.*?<!-- end -->\n",
    re.DOTALL,
)


class Reached(NamedTuple):
    """Of some statistics, mean over the models: an AUROC for each set of outliers, and the calibration error."""

    aurocs: list[float]
    ece: float


def found(root: Path) -> dict[str, Results]:
    """Every benchmark that is kept, by its folder's name."""
    return {path.parent.name: Results.read(path) for path in sorted((root / "results").glob("*/results.json"))}


def page(text: str, root: Path) -> str:
    """The page with its tables written anew."""
    benchmarks = found(root)

    def write(block: re.Match[str]) -> str:
        what, name = block["what"], block["name"]
        if what == "summary":
            lines = summary(benchmarks, root)
        elif what == "ranks":
            lines = ranks(benchmarks, root)
        elif what == "table":
            lines = table(benchmarks[name])
        elif what == "ceiling":
            lines = ceiling(_json(root / "results/ceiling.json")["studies"][name])
        elif what == "patience":
            lines = patience(_json(root / "results/patience.json")["rows"], ["steps"])
        elif what == "sizes":
            narrow, others = (_json(root / f"results/{each}.json")["rows"] for each in ("patience", "sizes"))
            beside = [row for row in narrow if row["run"] == "patience-0"]
            lines = patience(beside + others, ["run", "steps"])
        elif what == "grids":
            lines = grids(_json(root / "results/grids.json")["rows"])
        elif what == "alike":
            lines = alike([row for row in _json(root / "results/alike.json")["rows"] if row["data"] == name])
        elif what == "grey":
            lines = plain_rows(list(grey_glow.rows(root / "results" / name)))
        elif what in variants.RECIPES:
            lines = plain_rows(list(variants.rows(what, root / "results" / name)))
        else:
            lines = {"statistics": alone, "moves": moves, "more": more}[what](
                Folder(root / "results" / name), benchmarks[name]
            )
        return "\n".join([block[0].split("\n", 1)[0], *lines, "<!-- end -->", ""])

    return BLOCK.sub(write, text)


def table(results: Results) -> Iterator[str]:
    """AUROC of every method on every outlier set, with the paper's in brackets, and what stands beside."""
    study, values = results.study, headline(results.cells, results.study)
    nats = np.mean([run["held_out"] for name, run in results.training.items() if name.isdigit()])
    bits = np.mean([run["bits_per_dim"] for name, run in results.training.items() if name.isdigit()])
    minutes = sum(run["seconds"] for run in results.training.values()) / 60
    models = f"{study.members} models" if study.members > 1 else "1 model"
    rows = "all images" if study.rows is None else f"at most {study.rows:,} images of a set"
    yield (
        f"{models} and a background model ({study.model}{study.dimensions}, `{study.recipe}`), {rows}; "
        f"held out {nats:,.1f} nats, {bits:.3f} bits/dim; {minutes:,.0f} minutes of training in all."
    )
    yield ""
    yield "| outliers | " + " | ".join(METHODS[method] for method in values) + " | trivial statistic |"
    yield "|---" * (len(values) + 2) + "|"
    for number, outlier in enumerate(study.outliers):
        best = max(reached[number] for reached in values.values())
        cells = []
        for method, reached in values.items():
            paper, own = paper_auroc(study.inlier, outlier, method), f"{reached[number]:.3f}"
            own = f"**{own}**" if reached[number] == best else own
            cells.append(own if paper is None else f"{own} ({paper:.3f})")
        probe = max((p for p in results.probes if p.outlier == outlier), key=lambda p: p.auroc)
        yield f"| {outlier} | " + " | ".join(cells) + f" | {probe.auroc:.3f}, {probe.statistic} |"
    yield ""
    errors = {m: [e.ece for e in results.memorisation if e.method == m and e.member.isdigit()] for m in ("kde", "svm")}
    yield "ECE, mean over the models: " + ", ".join(
        f"{METHODS[method]} {np.mean(each):.2%}" for method, each in errors.items()
    )


def alone(folder: Folder, results: Results) -> Iterator[str]:
    """A KDE of each statistic alone: which of them gives a set away."""
    names, models = plain(read(folder, "0", TEST).names), _models(folder, results)
    values = [_reached(models, results, [name], ProductKDE()).aurocs for name in names]
    yield "| outliers | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for outlier, *row in zip(results.study.outliers, *values, strict=True):
        yield _row(outlier, *row)


def moves(folder: Folder, results: Results) -> Iterator[str]:
    """How far each statistic of other data sets lies from the test set's, in standard deviations, for each model."""
    names, study = plain(read(folder, "0", TEST).names), results.study
    outliers = [name for name in study.outliers if name not in SHIFTED]
    yield "| outliers | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for outlier in outliers:
        cells: list[list[str]] = []
        for member in map(str, range(study.members)):
            test, other = (read(folder, member, each).select(names).values for each in (TEST, outlier))
            cells.append([f"{move:+.2f}" for move in (other.mean(axis=0) - test.mean(axis=0)) / test.std(axis=0)])
        yield f"| {outlier} | " + " | ".join(map(", ".join, zip(*cells, strict=True))) + " |"


def more(folder: Folder, results: Results) -> Iterator[str]:
    """What DoSE makes of more statistics: a Glow's of single levels, its score tests, those of all models together."""
    reached = _dose(folder.path)
    names = [f"{METHODS[density]}{'' if kind == PAPERS else f', {kind}'}" for kind in reached for density in DOSE]
    yield "| outliers | " + " | ".join([*names, "the paper's DoSE"]) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for number, outlier in enumerate(results.study.outliers):
        values = [of[density].aurocs[number] for of in reached.values() for density in DOSE]
        yield _row(outlier, *values, _paper(results, outlier))
    errors = [f"{of[density].ece:.2%}" for of in reached.values() for density in DOSE]
    yield "| ECE | " + " | ".join(errors) + " | |"


def summary(benchmarks: Mapping[str, Results], root: Path) -> Iterator[str]:
    """What likelihood and DoSE, the better of its densities, find of every pair."""
    heads = ["likelihood", "DoSE", *KINDS[1:], "paper: likelihood", "DoSE"]
    yield "| trained on → shown | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    for name, results in benchmarks.items():
        likelihood = headline(results.cells, results.study)["likelihood"]
        for number, outlier in enumerate(results.study.outliers):
            own = list(_better(root / "results" / name, number).values())
            paper = [paper_auroc(results.study.inlier, outlier, "likelihood"), _paper(results, outlier)]
            yield _row(f"{name} → {outlier}", likelihood[number], *own, *paper)


def overview(benchmarks: Mapping[str, Results], root: Path) -> bytes:
    """The same as a figure, without noise and without what the paper does not have."""
    pairs = []
    for name, results in benchmarks.items():
        likelihood = headline(results.cells, results.study)["likelihood"]
        for number, outlier in enumerate(results.study.outliers):
            paper = _paper(results, outlier)
            if outlier not in ("uniform", "gaussian") and paper is not None:
                own = _better(root / "results" / name, number)
                pairs.append(Pair(name, outlier, likelihood[number], own[PAPERS], own["with score tests"], paper))
    return svg_file(glance(pairs))


def _better(path: Path, number: int) -> dict[str, Any]:
    """The better density's AUROC of a set of outliers for each kind of statistics; None where a model has none."""
    reached = _dose(path)
    return {k: max(reached[k][d].aurocs[number] for d in DOSE) if k in reached else None for k in KINDS}


@cache
def _dose(path: Path) -> dict[str, dict[str, Reached]]:
    """What each density of DoSE finds of each kind of statistics."""
    folder = Folder(path)
    results = Results.read(folder.results)
    models = _models(folder, results)
    names = models[0][TEST].names
    chosen = {kind: choose(names) for kind, choose in STATISTICS.items()}
    single = {
        kind: {density: _reached(models, results, columns, estimator(density)) for density in DOSE}
        for kind, columns in chosen.items()
        if columns
    }
    *_, most = filter(None, chosen.values())
    together = {name: side_by_side([tables[name].select(most) for tables in models]) for name in models[0]}
    columns = together[TEST].names
    return single | {TOGETHER: {d: _reached([together], results, columns, estimator(d)) for d in DOSE}}


def _paper(results: Results, outlier: str) -> float | None:
    """The better of the paper's two."""
    return max((paper_auroc(results.study.inlier, outlier, density) for density in DOSE), key=lambda value: value or 0)


def _models(folder: Folder, results: Results) -> list[dict[str, Statistics]]:
    """The tables of each model."""
    names = (TRAIN, HELD_OUT, TEST, *results.study.outliers)
    return [{name: read(folder, str(member), name) for name in names} for member in range(results.study.members)]


def _reached(
    models: Sequence[Mapping[str, Statistics]], results: Results, names: Sequence[str], density: DensityOfStates
) -> Reached:
    """What a density of some statistics finds."""
    aurocs, errors = [], []
    for tables in models:
        density.fit(tables[TRAIN].select(names).values)
        scores = {key: density.score_samples(table.select(names).values) for key, table in tables.items()}
        aurocs.append([auroc(scores[TEST], scores[outlier]) for outlier in results.study.outliers])
        errors.append(expected_calibration_error(score_bins(scores[TRAIN]), scores[HELD_OUT], draws=1).ece)
    return Reached(np.mean(aurocs, axis=0).tolist(), float(np.mean(errors)))


def ceiling(rows: Sequence[Mapping[str, str | float]]) -> Iterator[str]:
    """What densities find and a classifier tells apart, as `ceiling.py` has kept it, without noise and flips."""
    yield from plain_rows([row for row in rows if row["outliers"] not in SHIFTED])


def alike(rows: Sequence[Mapping[str, str | float]]) -> Iterator[str]:
    """What is found where all images went through the same change, as `alike.py` has kept it."""
    changes = list(dict.fromkeys(row["all images"] for row in rows))
    yield "| outliers | " + " | ".join(map(str, changes)) + " |"
    yield "|---" * (len(changes) + 1) + "|"
    for outlier in dict.fromkeys(row["outliers"] for row in rows):
        cells = [[v for v in row.values() if isinstance(v, float)] for row in rows if row["outliers"] == outlier]
        yield f"| {outlier} | " + " | ".join(" / ".join(f"{value:.3f}" for value in cell) for cell in cells) + " |"


def grids(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Likelihood, TT, DoSE of the sums and by level, for each grid of faces, as `grids.py` has kept them."""
    faces = list(dict.fromkeys(row["faces"] for row in rows))
    found = {(row["model"], row["outliers"], row["faces"]): row for row in rows}
    yield "| trained on → shown | " + " | ".join(faces) + " |"
    yield "|---" * (len(faces) + 1) + "|"
    for model, outlier in dict.fromkeys((row["model"], row["outliers"]) for row in rows):
        each = [found[model, outlier, grid] for grid in faces]
        cells = [" / ".join(f"{row[name]:.3f}" for name in ("likelihood", "TT", PAPERS, "by level")) for row in each]
        yield _row(f"{model} → {outlier}", *cells)


def patience(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> Iterator[str]:
    """What Glows find after so many steps, as `patience.py` has kept it, mean over the runs."""
    outliers = list(dict.fromkeys(row["outliers"] for row in rows))
    yield f"| {' | '.join(by)} | bits/dim | `latent` of SVHN moves | " + " | ".join(outliers) + " |"
    yield "|---" * (len(by) + len(outliers) + 2) + "|"
    for which in sorted({tuple(row[name] for name in by) for row in rows}):
        here = [row for row in rows if tuple(row[name] for name in by) == which]
        moves = ", ".join(f"{row['latent moves']:+.2f}" for row in here if row["outliers"] == "svhn")
        cells = [value if isinstance(value, str) else f"{value:,}" for value in which]
        cells += [f"{np.mean([row['bits/dim'] for row in here]):.2f}", moves]
        for outlier in outliers:
            found = [[row[kind] for kind in STATISTICS] for row in here if row["outliers"] == outlier]
            cells.append(" / ".join(f"{value:.3f}" for value in np.mean(found, axis=0)))
        yield "| " + " | ".join(cells) + " |"


def plain_rows(rows: Sequence[Mapping[str, str | float]]) -> Iterator[str]:
    """Rows as another benchmark has them."""
    yield "| " + " | ".join(rows[0]) + " |"
    yield "|---" * len(rows[0]) + "|"
    for row in rows:
        yield _row(*row.values())


def _row(*cells: str | float | None) -> str:
    """A line of a table of AUROCs."""
    return "| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else cell or "" for cell in cells) + " |"


def _json(path: Path) -> Any:  # of a benchmark of ours, whose fields are looked up by name
    return json.loads(path.read_text(encoding="utf-8"))


def ranks(benchmarks: Mapping[str, Results], root: Path) -> Iterator[str]:
    """The average rank of every method over the pairs that the paper has too, with the paper's in brackets.

    Below it the same where DoSE has more statistics; of ensembles, all methods are. A benchmark of one model has no
    WAIC, and one of VAEs with more latent dimensions than the paper's is a second one of its data: both are left out.
    """
    kinds = [kind for kind in KINDS if kind != "by level"]
    values: dict[str, dict[str, list[float]]] = {kind: {method: [] for method in METHODS} for kind in kinds}
    for name, results in benchmarks.items():
        study, single = results.study, headline(results.cells, results.study)
        if single.keys() == METHODS.keys() and study.latent is None:
            areas = {(cell.method, cell.outlier): cell.auroc for cell in results.cells if cell.member == ENSEMBLE}
            ensemble = {method: [areas[method, outlier] for outlier in study.outliers] for method in METHODS}
            shared = [n for n, outlier in enumerate(study.outliers) if paper_auroc(study.inlier, outlier, "kde")]
            for kind, methods in values.items():
                of = _dose(root / "results" / name).get(kind, {})
                reached = (ensemble if kind == TOGETHER else single) | {d: each.aurocs for d, each in of.items()}
                for method in methods:
                    methods[method] += [reached[method][number] for number in shared]
    average = {kind: average_ranks(methods) for kind, methods in values.items()}
    yield f"Average rank over {len(values[PAPERS]['kde'])} pairs, 1 = best:"
    yield ""
    yield "| DoSE | " + " | ".join(METHODS.values()) + " |"
    yield "|---" * (len(METHODS) + 1) + "|"
    for kind, ranks_of in average.items():
        cells = [f"{ranks_of[method]:.2f}" + (f" ({RANKS[method]})" if kind == PAPERS else "") for method in METHODS]
        yield f"| {'as in the paper' if kind == PAPERS else kind} | " + " | ".join(cells) + " |"


def figure(folder: Folder, results: Results) -> bytes:
    """Histograms of every statistic of the paper, of the test set and of other data sets."""

    def papers(name: str) -> Statistics:
        table = read(folder, "0", name)
        return table.select(plain(table.names))

    outliers = [name for name in results.study.outliers if name not in SHIFTED]
    return svg_file(histograms(papers(TEST), {name: papers(name) for name in outliers}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        after = page(before, ROOT)
        if not options.check:
            path.write_text(after, encoding="utf-8")
        elif after != before:
            sys.exit(f"{path.name} is not what results/ says: run python benchmarks/results_page.py")
    if not options.check:
        benchmarks = found(ROOT)
        for name, results in benchmarks.items():
            folder = Folder(ROOT / "results" / name)
            (folder.path / "statistics.svg").write_bytes(figure(folder, results))
        (ROOT / "results/summary.svg").write_bytes(overview(benchmarks, ROOT))


if __name__ == "__main__":
    main()
