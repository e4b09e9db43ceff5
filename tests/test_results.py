"""What is kept in results/ and said of it on the pages follows from statistics that are kept as well."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from bench_folder import write_folder
from dose_ood.benchmark.evaluate import reevaluate
from dose_ood.benchmark.results import Folder, Results

ROOT = Path(__file__).parents[1]
KEPT = sorted(path.parent for path in (ROOT / "results").glob("*/results.json"))


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    return importlib.import_module("results_page")


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_every_cell_follows_from_the_statistics_that_are_kept(folder):
    kept, again = Results.read(Folder(folder).results), reevaluate(Folder(folder))
    assert len(kept.cells) == len(again.cells) > 0
    for mine, other in zip(kept.cells, again.cells, strict=True):
        assert (mine.outlier, mine.method, mine.member) == (other.outlier, other.method, other.member)
        assert mine.auroc == pytest.approx(other.auroc, abs=1e-9)
    assert kept.ranks == again.ranks


@pytest.mark.parametrize("page", ["RESULTS.md", "docs/differences.md"])
def test_the_pages_say_what_the_results_say(pages, page):
    assert ROOT / page in pages.PAGES
    text = (ROOT / page).read_text(encoding="utf-8")
    assert pages.BLOCK.search(text)
    assert pages.page(text, ROOT) == text


def test_the_readme_says_the_same():
    """Its table has columns of the summary in RESULTS.md, without those of levels and the paper's likelihood."""
    row, cells = re.compile(r"^\| (\w+ → \w+) \|(.+)\|$", re.MULTILINE), {}
    for name in ("README.md", "RESULTS.md"):
        for pair, values in row.findall((ROOT / name).read_text(encoding="utf-8")):
            found = [value.strip() for value in values.split("|")]
            cells[name, pair.lower().replace("fashionm", "fashion_m")] = found
    readme = {pair: values for (name, pair), values in cells.items() if name == "README.md"}
    assert readme
    for pair, values in readme.items():
        likelihood, dose, _, tests, ensemble, _, paper = cells["RESULTS.md", pair]
        assert values == [likelihood, dose, tests, ensemble, paper]


def test_tables_are_written_between_their_marks(pages, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "paper_auroc", lambda inlier, outlier, *method: None if outlier == "hflip" else 0.5)
    (tmp_path / "results").mkdir()
    write_folder(tmp_path / "results/toy", images=False, runs=False)
    found = pages.found(tmp_path)
    before = "# Ours\n<!-- table toy -->\nold\n<!-- end -->\nbetween\n<!-- ranks -->\n<!-- end -->\n"
    before += (
        "<!-- statistics toy -->\n<!-- end -->\n<!-- more toy -->\n<!-- end -->\n<!-- ceiling toy -->\n<!-- end -->\n"
        "<!-- summary -->\n<!-- end -->\n"
    )
    rows = [{"outliers": name, "statistics": "the paper's", "classifier": 0.75} for name in ("far", "hflip")]
    (tmp_path / "results/ceiling.json").write_text(json.dumps({"studies": {"toy": rows}}))
    after = pages.page(before, tmp_path)
    assert pages.page(after, tmp_path) == after
    assert "old" not in after
    assert after.startswith("# Ours\n<!-- table toy -->\n2 models")
    cells = [cell.auroc for cell in found["toy"].members("far", "svm")]
    assert f"{np.mean(cells):.3f}" in next(line for line in after.splitlines() if line.startswith("| far |"))
    assert "Average rank over 2 pairs" in after.split("between")[1], "the paper has no hflip"
    assert "| outliers | `like` | `latent` | `jac` |" in after, "levels are not among the paper's statistics"
    assert after.split("<!-- ceiling toy -->")[1].split("\n")[3:5] == ["| far | the paper's | 0.750 |", "<!-- end -->"]
    (head,) = (line for line in after.splitlines() if "| DoSE SVM, by level |" in line)
    assert head.endswith("| DoSE SVM, with score tests | DoSE KDE, ensemble | DoSE SVM, ensemble | the paper's DoSE |")
    assert " → far | " in after
    assert "| with score tests | " in after
    drawn = pages.figure(Folder(tmp_path / "results/toy"), found["toy"])
    assert drawn.startswith(b"<?xml")
    assert b"<image" not in drawn
    drawn = pages.overview(found, tmp_path)
    assert drawn.startswith(b"<?xml")
    assert "toy → far".encode() in drawn
