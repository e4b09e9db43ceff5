"""The report says what the results say, shows what the folder holds, and is one safe page."""

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from bench_folder import HOSTILE, OUTLIERS, PROVENANCE, pictures, write_folder
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.paper import paper_auroc
from dose_ood.benchmark.results import HELD_OUT, METHODS, TEST, TRAIN, Folder, Study
from dose_ood.benchmark.toys import gaussian
from dose_ood.cli.report import _write_figures
from dose_ood.errors import InputError
from dose_ood.report import drawings, numbers, style, toys
from dose_ood.report.benchmark import Report, benchmark_report
from dose_ood.report.curves import band, pp, roc, shares
from dose_ood.report.evidence import auroc_of, gather
from dose_ood.report.html import escape, page, tree
from dose_ood.report.pictures import Drawn, hidden_sets, mosaics
from html_page import Page

SECTIONS = [
    *("Results", "Ranks and tests", "Probes for leaks", "ROC curves", "Statistics", "Statistic space"),
    *("Most and least typical images", "Calibration", "Superfluous statistics", "Training"),
    *("Samples and reconstructions", "Provenance"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def evidence(folder):
    return gather(folder)


@pytest.fixture(scope="module")
def made(folder, evidence):
    grey = pictures(TEST, 8)
    drawn = Drawn(grey, dict.fromkeys((TEST, *OUTLIERS), (grey, grey[::-1])))
    return benchmark_report(evidence, folder, drawn)


@pytest.fixture(scope="module")
def parsed(made):
    return Page(made[0])


def test_the_table_has_the_numbers_of_the_results(parsed, evidence):
    header, *rows = parsed.tables[0]
    assert header[2:] == list(METHODS.values())
    results, outliers = evidence.results, list(OUTLIERS)
    assert [row[0] for row in rows[::2]] == outliers
    for position, outlier in enumerate(outliers):
        models, whole = rows[2 * position][2:], rows[2 * position + 1][1:]
        for method, mean, ensemble in zip(METHODS, models, whole, strict=True):
            cells = [cell.auroc for cell in results.cells if (cell.outlier, cell.method) == (outlier, method)]
            single, last = cells[:-1], cells[-1]
            expected = f"{np.mean(single):.3f} ± {np.std(single, ddof=1):.3f}" if single else "–"
            assert (mean, ensemble) == (expected, f"{last:.3f}")


def test_every_cell_and_its_interval_are_in_the_page(parsed, evidence):
    cell = evidence.results.cells[0]
    tables = [table for table in parsed.tables if table[0][:3] == ["outliers", "method", "model"]]
    (rows,) = tables
    assert len(rows) == 1 + len(evidence.results.cells)
    interval = f"{cell.auroc_low:.4f} to {cell.auroc_high:.4f}"
    assert rows[1][:5] == [cell.outlier, METHODS[cell.method], cell.member, f"{cell.auroc:.4f}", interval]
    assert any(interval in hint for hint in parsed.all("title"))


def test_the_best_of_a_row_is_marked(made):
    rows = re.findall(r"<tr>.*?</tr>", made[0])
    far = next(row for row in rows if "2 models" in row and ">far<" in row)
    assert re.findall(r'class="best"[^>]*>([\d.]+)', far) == ["1.000", "1.000"]  # the two DoSE


def test_the_papers_numbers_stand_beside(evidence):
    study = Study("fashion_mnist:train", {"mnist": "mnist:test"}, "vae", "cpu", 2, None, 0)
    cells = tuple(replace(c, outlier="mnist") for c in evidence.results.cells if c.outlier == "far")
    results = replace(evidence.results, study=study, cells=cells)
    rows = Page(numbers.auroc_table(results, numbers.paper_of(results))).tables[0][3:]
    assert [row[0] for row in rows] == ["paper", "difference"]
    for method, theirs, difference in zip(METHODS, rows[0][1:], rows[1][1:], strict=True):
        known, ours = paper_auroc("fashion_mnist", "mnist", method), auroc_of(results, "mnist", method)
        assert float(theirs) == known
        assert float(difference.replace("−", "-")) == pytest.approx(ours - known, abs=1e-3)
    glow = replace(results, study=replace(study, model="glow"))
    assert "paper" not in Page(numbers.auroc_table(glow, numbers.paper_of(glow))).text.split("interval.")[1]


def test_ranks_tests_probes_and_calibration_errors_are_those_of_the_results(parsed, evidence):
    results = evidence.results
    tables = {tuple(table[0]): table[1:] for table in parsed.tables}
    ranks = {row[0]: row[1] for row in tables["method", "rank", "paper"]}
    assert ranks == {METHODS[name]: f"{rank:.2f}" for name, rank in results.ranks.items()}
    for row, each in zip(tables["method", "against", "difference", "p"], results.comparisons, strict=True):
        assert (row[0], row[1], row[3]) == (METHODS[each.method], METHODS[each.other], f"{each.p_value:.3g}")
    for row, each in zip(tables["method", "model", "ECE", "by chance", "p"], results.memorisation, strict=True):
        assert row[1:3] == [each.member, f"{each.ece:.2%}"]
    probes = next(table for head, table in tables.items() if head[-1] == "best method")
    found = {
        (row[0], name): cell
        for row in probes
        for name, cell in zip(("mean", "contrast", "size"), row[1:4], strict=True)
    }
    assert found == {(each.outlier, each.statistic): f"{each.auroc:.3f}" for each in results.probes}


def test_the_page_is_valid_and_asks_for_nothing(made, parsed):
    ids = parsed.all("id")
    assert len(ids) == len(set(ids))
    for place in parsed.all("href"):
        assert place.startswith("#")
        assert place[1:] in ids
    assert set(parsed.all("aria-labelledby")) <= set(ids)
    assert all(source.startswith("data:image/png;base64,") for source in parsed.all("src"))
    for tag, attributes in parsed.tags:
        assert tag not in ("script", "link", "iframe", "object", "base", "i", "b", "u")
        assert not [name for name in attributes if name.startswith("on")]
        assert tag != "img" or attributes["alt"]
        assert tag != "svg" or attributes.get("role") == "img" or attributes.get("aria-hidden") == "true"
        assert attributes.get("scope", "row") in ("row", "col", "rowgroup")
    assert not re.findall(r"url\((?!#)|@import", made[0])
    assert set(re.findall(r"https?://[^\s\"']+", made[0])) <= {"http://www.w3.org/2000/svg"}
    assert len(made[0]) < 1_500_000


def test_hostile_text_stays_text(made, parsed):
    for text in (HOSTILE, "<i>toy", "<b>glow</b>", "<u>tiny", "javascript:alert(1)", *PROVENANCE["commands"]):
        assert text in parsed.text
    for text in (HOSTILE, "<i>", "<b>", "<u>", "<script", "</pre><s"):
        assert text not in made[0]
    assert escape("\x00\ud800'") == "\ufffd\ufffd&#x27;"
    text = page("</title><script>", "</p><script>", [], "</footer><script>", ["</a><script>"])
    assert "<script" not in text
    assert tree({"<a>": [], "n": True, "x": [["<b>"]]}).count("<") == tree({"a": [], "n": True, "x": [["b"]]}).count(
        "<"
    )


def test_every_section_is_there_and_in_the_contents(made, parsed):
    html, report = made
    assert list(report.sections) == SECTIONS
    assert not report.missing
    contents = re.search(r"<nav.*?</nav>", html)[0]
    assert re.findall(r'<a href="#[^"]*">([^<]*)', contents) == SECTIONS
    assert html.index('id="provenance"') > html.index('id="training"')


def test_what_is_not_in_the_folder_is_said(tmp_path):
    bare = write_folder(tmp_path, images=False, runs=False, rows=60)
    for part in ("statistics", "probes"):
        (bare / part).rename(tmp_path.parent / f"{tmp_path.name} {part}")
    html, report = benchmark_report(gather(bare), bare, "the folder has no trained model")
    assert list(report.sections) == [
        "Results",
        "Ranks and tests",
        "Probes for leaks",
        "Calibration",
        "Training",
        "Not in this report",
        "Provenance",
    ]
    said = Page(html).text
    for name in ("ROC curves", "statistic space", "superfluous statistics", "Most and least", "Loss curves", "Samples"):
        assert name in " ".join(report.missing)
    assert all(line in said for line in report.missing)
    assert not report.panels


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a folder with results.json"):
        gather(tmp_path)


@pytest.mark.parametrize("content", [{"images": np.zeros((2, 8, 8), np.uint8), "rows": [0, 1]}, {"x": [1]}])
def test_images_of_another_shape_are_refused(folder, tmp_path, content):
    (tmp_path / "images").mkdir()
    (tmp_path / "results.json").write_bytes(Folder(folder).results.read_bytes())
    np.savez(tmp_path / "images" / "test.npz", **content)
    with pytest.raises(InputError, match=r"test.npz: expected"):
        gather(tmp_path)


def test_curves_agree_with_the_cells(evidence):
    """The area under each curve is the AUROC of its cell, and the bars give the calibration error."""
    for method, scores in evidence.scores.items():
        member = "ensemble" if method == "waic" else "0"
        for outlier in OUTLIERS:
            (cell,) = [
                c for c in evidence.results.cells if (c.outlier, c.method, c.member) == (outlier, method, member)
            ]
            assert auroc(scores[TEST], scores[outlier]) == pytest.approx(cell.auroc)
            assert np.trapezoid(*roc(scores[TEST], scores[outlier], 10_000)[::-1]) == pytest.approx(cell.auroc)
            assert np.trapezoid(*roc(scores[TEST], scores[outlier])[::-1]) == pytest.approx(cell.auroc, abs=0.02)
        (found,) = [m for m in evidence.results.memorisation if (m.method, m.member) == (method, member)]
        expected, share = shares(scores[TRAIN], scores[HELD_OUT])
        assert np.abs(expected - share).mean() == pytest.approx(found.ece)


def test_pp_curves_and_their_band():
    same = np.random.default_rng(0).normal(size=(400, 2, 300))
    distances = [np.abs(np.subtract(*pp(a, b))).max() for a, b in same]
    assert np.mean(np.array(distances) > band(300, 300)) < 0.08
    x, y = pp(np.arange(1000.0), np.arange(0, 1000, 2.0))
    assert np.abs(x - y).max() < 0.01
    assert np.subtract(*pp(np.arange(1000.0), np.arange(1000.0) + 500)).max() == pytest.approx(0.5, abs=0.01)


def test_mosaics_show_the_extremes_of_the_whole_set(evidence):
    for method, sets in mosaics(evidence, ()).corners.items():
        for name, (most, least) in sets.items():
            scores, images = evidence.scores[method][name], pictures(name, 200)
            for png, row in ((most, np.argsort(scores, kind="stable")[-1]), (least, np.argmin(scores))):
                sheet = np.asarray(Image.open(io.BytesIO(png)))
                assert sheet.shape == (4 * 9 + 1, 4 * 9 + 1)
                assert np.array_equal(sheet[1:9, 1:9], images[row, 0])
    assert mosaics(evidence, (), budget=0).without == [TEST, *mosaics(evidence, (), budget=0).without[1:]]


def test_pixels_can_be_left_out(folder, evidence):
    results = evidence.results
    assert hidden_sets(results, ["far"]) == {"far"}
    assert hidden_sets(results, ["elsewhere"]) == {"far"}
    assert hidden_sets(results, ["<i>toy"]) == {TEST, "hflip"}  # a flip shows the same pixels
    assert hidden_sets(results, [], every=True) == {TEST, *OUTLIERS}
    with pytest.raises(InputError, match=r"cannot leave out 'svhn': expected one of"):
        hidden_sets(results, ["svhn"])
    without = mosaics(evidence, {TEST, "hflip"})
    assert {name for sets in without.corners.values() for name in sets} == {"far", HOSTILE}
    grey = pictures(TEST, 8)
    quick = replace(evidence, scores={"kde": evidence.scores["kde"]}, tables={}, logs={})
    html, report = benchmark_report(quick, folder, Drawn(grey, {TEST: (grey, grey)}), {TEST, *OUTLIERS})
    assert "<img" not in html
    assert not report.pictures
    assert "left out on request" in " ".join(report.missing)


def test_pictures_in_the_page_are_the_files(made, parsed, tmp_path):
    figures = {name: made[1].panels[name] for name in ("roc", "losses")}
    files = _write_figures(tmp_path, Report(panels={**figures, "ROC!": figures["losses"]}, pictures=made[1].pictures))
    assert len(set(files)) == len(files) == 6 + len(made[1].pictures)
    shown = {base64.b64decode(source.partition(",")[2]) for source in parsed.all("src")}
    assert shown == set(made[1].pictures.values())
    assert all(content in {file.read_bytes() for file in tmp_path.glob("*.png")} for content in shown)
    assert (tmp_path / "roc.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_the_same_folder_gives_the_same_page(evidence, made):
    again = drawings.drawn(drawings.rocs(evidence), "ROC curves", "Scores of model 0; WAIC is of the ensemble.")
    assert again in made[0]


def test_no_torch_is_needed_and_its_lack_is_said(folder, tmp_path):
    code = (
        "import sys, runpy\n"
        "class Nowhere:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Nowhere())\n"
        "from dose_ood.cli import main\n"
        "main()\n"
    )
    few = json.loads(Folder(folder).results.read_text())
    few["study"]["outliers"] = {"far": "x"}
    (tmp_path / "runs" / "0" / "model").mkdir(parents=True)
    (tmp_path / "results.json").write_text(json.dumps(few))
    out = tmp_path / "deep" / "report.html"
    command = [sys.executable, "-c", code, "report", tmp_path / "results.json", "-o", out, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (
        'Samples and reconstructions: they need PyTorch: pip install "dose-ood[torch]".'
        in json.loads(done.stdout)["left_out"]
    )
    assert Page(out.read_text(encoding="utf-8"))


def luminance(colour: str) -> float:
    colour = "".join(2 * letter for letter in colour) if len(colour) == 3 else colour
    channels = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_contrast_is_enough(theme):
    """WCAG 2, level AA: 4.5 for text, 3 for what is drawn."""
    colours = dict(re.findall(r"--(\w+): #(\w+)", theme))

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(colours[a]), luminance(colours[b])))
        return (high + 0.05) / (low + 0.05)

    for text, ground in (
        ("ink", "paper"),
        ("soft", "paper"),
        ("accent", "paper"),
        ("ink", "best"),
        ("soft", "best"),
        ("ink", "warn"),
        ("ink", "panel"),
    ):
        assert contrast(text, ground) >= 4.5, (text, ground)
    for drawn in ("shade", *(f"c{i}" for i in range(9))):
        assert contrast(drawn, "paper") >= 3, drawn


def test_the_toys_are_the_papers():
    assert np.array_equal(toys.two_coordinates(50)[:, 0], gaussian(50)["first"])
    drawn = toys.figure_1(1000)
    assert [title[:3] for title in drawn.draw] == ["(a)", "(b)", "(c)", "(d)", "(e)"]
    titles = list(toys.appendix_b(2000).draw)
    reached = {title.partition(":")[0]: float(title.rpartition(" ")[2]) for title in titles}
    assert abs(reached["likelihood"] - 0.5) < 0.1
    assert abs(reached["TT"] - 0.5) < 0.1
    assert min(reached["DoSE KDE"], reached["DoSE SVM"]) > 0.98
    assert list(toys.appendix_d(2000).draw) == ["useless", "obfuscating"]


@pytest.mark.slow
def test_the_toy_figures_are_written(tmp_path):
    done = subprocess.run([sys.executable, "-m", "dose_ood", "figures", "-o", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = {f"{stem}.{kind}" for stem in ("figure-1", "appendix-b", "appendix-d") for kind in ("svg", "png")}
    assert {file.name for file in tmp_path.iterdir()} == {"index.html", *names}
    assert len(re.findall(r'role="img"', (tmp_path / "index.html").read_text(encoding="utf-8"))) == 11
