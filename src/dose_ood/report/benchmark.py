"""A benchmark's folder as one page: its tables, its figures, and where they come from."""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dose_ood import __version__
from dose_ood.benchmark.methods import DOSE
from dose_ood.benchmark.results import ENSEMBLE, METHODS, TEST, Folder, Results
from dose_ood.plots import Panels
from dose_ood.report import drawings, numbers
from dose_ood.report.curves import plane
from dose_ood.report.drawings import drawn
from dose_ood.report.evidence import Evidence, by_gain
from dose_ood.report.html import details, escape, facts, listing, page, paragraph, picture, section, tree
from dose_ood.report.pictures import Drawn, mosaic, mosaics, sample_pictures

MODELS = {"vae": "β-VAE", "glow": "Glow"}


@dataclass
class Report:
    """A page in the making: its sections, its figures, and what it has to do without."""

    sections: dict[str, str] = field(default_factory=dict)
    panels: dict[str, Panels] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, title: str, text: str, *blocks: str) -> None:
        """Add a section."""
        self.sections[title] = section(title, text, *blocks)

    def draw(self, name: str, panels: Panels, what: str, caption: str) -> str:
        """Keep a figure, and give it as a block."""
        self.panels[name] = panels
        return drawn(panels, what, caption)

    def html(self, title: str, lead: str, footer: str) -> str:
        """The page."""
        return page(title, lead, list(self.sections.values()), footer, list(self.sections))


def benchmark_report(
    evidence: Evidence, path: Path, drawing: Drawn | str, hidden: Collection[str] = frozenset()
) -> tuple[str, Report]:
    """The page of a benchmark, and the figures in it.

    Parameters
    ----------
    evidence
        What its folder holds.
    path
        The folder, for the hash of its results.
    drawing
        What the first model draws, or why it cannot; an empty reason is not given.
    hidden
        Sets whose pixels must not be shown.
    """
    report, results = Report(), evidence.results
    _numbers(report, results)
    _scores(report, evidence)
    _space(report, evidence)
    _images(report, evidence, hidden)
    _calibration(report, evidence)
    _superfluous(report, evidence)
    _training(report, evidence)
    _samples(report, results, drawing, hidden)
    if report.missing:
        report.add("Not in this report", "", listing(report.missing))
    _provenance(report, results, path)
    title = f"Out-of-distribution detection: {results.study.inlier}"
    return report.html(title, _lead(results), f"Made by dose report, dose-ood {__version__}."), report


def _lead(results: Results) -> str:
    model, count = MODELS.get(results.study.model, results.study.model), len(results.study.outliers)
    text = f"{results.study.members} × {model}, {count} outlier sets, {len(numbers.methods_of(results))} methods."
    if not results.ranks:
        return text
    best = min(results.ranks.values())
    first = " and ".join(METHODS.get(name, name) for name, rank in results.ranks.items() if rank == best)
    return f"{text} Best on average: {first}, rank {best:.2f}."


def _numbers(report: Report, results: Results) -> None:
    study = results.study
    rows = "all" if study.rows is None else f"at most {study.rows:,} a set"
    glance = {
        "in-distribution": study.inlier,
        "models": f"{study.members} × {MODELS.get(study.model, study.model)}{study.dimensions}, {study.recipe} recipe",
        "images": rows,
        "seed": f"{study.seed}",
    }
    text = (
        "1 = all outliers found, 0.5 = blind, 0 = outliers taken for the most typical of all. TT is the typicality "
        "test, LLR the likelihood ratio. All methods look at the same models."
    )
    more = details("AUPR and FPR95", numbers.other_measures(results))
    blocks = [facts(glance), numbers.auroc_table(results, numbers.paper_of(results)), more, numbers.every_cell(results)]
    report.add("Results", text, *blocks)
    if results.ranks:
        tests = [numbers.comparison_table(results)] if results.comparisons else []
        report.add("Ranks and tests", "", numbers.rank_table(results), *tests)
    if results.probes:
        text = (
            "If the brightness or the compressed size of an image tells the sets apart as well as a method does, the "
            "pair says little about the method: a difference in how the sets were made would do."
        )
        report.add("Probes for leaks", text, numbers.probe_table(results))
    else:
        report.missing.append("Probes for leaks: the results hold none.")


def _shown(evidence: Evidence) -> str:
    return f"of model {evidence.member}" + (f"; WAIC is of the {ENSEMBLE}" if "waic" in evidence.scores else "")


def _scores(report: Report, evidence: Evidence) -> None:
    if not evidence.scores or not evidence.outliers:
        why = "the folder has no statistics of train, held_out, test and an outlier set"
        report.missing.append(f"ROC curves, statistics, statistic space, calibration, superfluous statistics: {why}.")
        return
    block = report.draw("roc", drawings.rocs(evidence), "ROC curves", f"Scores {_shown(evidence)}.")
    text = "Outliers found over inliers discarded with them, as the threshold moves. Up and to the left is better."
    report.add(
        "ROC curves", f"{text} The dotted line is guessing; below it, outliers look more typical than inliers.", block
    )
    text = (
        "The test set (filled) against each outlier set. DoSE needs the outliers to leave the filled region in some "
        "statistic, on either side; the likelihood alone needs them to be left of it."
    )
    caption = f"Statistics of model {evidence.member}; the outermost bins hold everything further out."
    block = report.draw("statistics", drawings.histograms(evidence), "Histogram of a statistic", caption)
    report.add("Statistics", text, block)


def _space(report: Report, evidence: Evidence) -> None:
    if not evidence.scores or not evidence.outliers:
        return
    found = plane(evidence.tables)
    if found is None:
        report.missing.append("Statistic space: no two statistics of the model add up to its likelihood.")
        return
    sum_ = "their sum is the log-likelihood" if found.sign > 0 else "their difference bounds the log-likelihood"
    text = (
        f"{found.x} and {found.y}: {sum_}. Shaded is what a method discards when its threshold discards 10 % of "
        "held-out images. The likelihood cuts the plane in two, TT keeps a stripe, DoSE keeps where the inliers are. "
        "Here all methods know these two statistics only."
    )
    blocks = []
    for position, outlier in enumerate(by_gain(evidence.results, evidence.outliers)):
        panels = drawings.regions(evidence, found, outlier)
        caption = "At most 500 images of each set; those beyond the frame are on its edge."
        block = report.draw(f"space {outlier}", panels, f"Plane of {found.x} and {found.y}, {outlier}", caption)
        blocks.append(details(outlier, block, opened=position == 0))
    report.add("Statistic space", text, *blocks)


def _images(report: Report, evidence: Evidence, hidden: Collection[str]) -> None:
    title = "Most and least typical images"
    if not evidence.images or not evidence.scores:
        report.missing.append(f"{title}: the folder has no {'scores' if evidence.images else 'images'}.")
        return
    made = mosaics(evidence, hidden)
    if hidden:
        named = ", ".join("in-distribution" if name == TEST else name for name in sorted(hidden))
        report.missing.append(f"{title}, samples and reconstructions: pictures of {named} were left out on request.")
    if not made.corners:
        return
    report.pictures |= made.files()
    text = (
        "Of each set the 16 most and the 16 least typical images, the surest first: outliers on the left are missed, "
        "inliers on the right are false alarms."
    )
    rest = [paragraph(f"Not shown, to keep the page small: {', '.join(made.without)}.")] if made.without else []
    blocks = "".join(mosaic(method, sets) for method, sets in made.corners.items())
    report.add(title, text, f'<div class="mosaic">{blocks}</div>', *rest)


def _calibration(report: Report, evidence: Evidence) -> None:
    memorised, blocks = evidence.results.memorisation, []
    text = (
        "Held-out images must score like training images, or the model has memorised and every threshold is wrong. "
        "On the diagonal they do; the grey band is what chance alone explains."
    )
    if evidence.scores and evidence.outliers:
        caption = (
            f"Scores {_shown(evidence)}. The bars are the bins of the calibration error; the line is what is expected."
        )
        blocks.append(report.draw("calibration", drawings.calibration(evidence), "Calibration", caption))
        for method in (method for method in DOSE if method in evidence.scores):
            panels = drawings.score_histogram(evidence, method)
            caption = f"Scores of {METHODS[method]} and the threshold that discards 5 %; the first bin holds the rest."
            blocks.append(report.draw(f"scores {method}", panels, f"Scores of {METHODS[method]}", caption))
    if memorised:
        blocks.append(
            details("Expected calibration errors", numbers.memorisation_table(memorised), opened=len(memorised) < 9)
        )
    if blocks:
        report.add("Calibration", text, *blocks)
    else:
        report.missing.append("Calibration: the folder has neither scores nor calibration errors.")


def _superfluous(report: Report, evidence: Evidence) -> None:
    if "kde" not in evidence.scores or not evidence.outliers:
        return
    text = (
        "AUROC of DoSE KDE after adding statistics that are the same for inliers and outliers (useless), or for which "
        "every outlier has the most typical value (obfuscating). What they cost depends on how many nats lie between "
        "the sets. The paper finds 1 % lost after 10,000 useless or 80 obfuscating ones (FashionMNIST against MNIST)."
    )
    block = report.draw(
        "superfluous",
        drawings.superfluous(evidence),
        "AUROC with superfluous statistics",
        f"Scores of model {evidence.member}.",
    )
    report.add("Superfluous statistics", text, block)


def _training(report: Report, evidence: Evidence) -> None:
    blocks = []
    if evidence.logs:
        caption = (
            "Pale: training. Points: held out, at the end of each epoch. A gap that grows is memorisation. A high "
            "start may leave the frame."
        )
        if evidence.results.study.model == "vae":
            caption += " While β is above 1, the training loss counts the rate β times."
        blocks.append(report.draw("losses", drawings.losses(evidence), "Loss of every run over its steps", caption))
    else:
        report.missing.append("Loss curves: the folder has no logs of training runs.")
    if evidence.results.training:
        blocks.append(numbers.training_table(evidence.results.training))
    if blocks:
        report.add("Training", "", *blocks)


def _samples(report: Report, results: Results, drawing: Drawn | str, hidden: Collection[str]) -> None:
    title = "Samples and reconstructions"
    if isinstance(drawing, str):
        report.missing += [f"{title}: {drawing}."] if drawing else []
        return
    made = sample_pictures(drawing, hidden)
    if not made:
        return
    report.pictures |= made
    text = (
        "What the first model draws by itself, and what it makes of images: above as they are, below as it sees them."
    )
    if results.study.model == "glow":
        text += " A flow gives every image back as it was."
    figures = []
    for name, png in made.items():
        label = name.removeprefix("reconstructions ").replace(TEST, "in-distribution") if name != "samples" else name
        alt = "samples of the model" if name == "samples" else f"images of {label} above their reconstructions"
        figures.append(f"<div><h3>{escape(label)}</h3>{picture(png, alt, 400)}</div>")
    report.add(title, text, f'<div class="panels">{"".join(figures)}</div>')


def _provenance(report: Report, results: Results, path: Path) -> None:
    digest = hashlib.sha256(Folder(path).results.read_bytes()).hexdigest()
    study: Mapping[str, object] = asdict(results.study)
    own = {"study": study, "results.json": {"sha256": digest}}
    text = "What was run, with what, and on what; with this the numbers can be had again."
    report.add("Provenance", text, tree({**results.provenance, **own}))
