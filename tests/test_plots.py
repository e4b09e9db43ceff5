import io
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.path import Path
from PIL import Image

from dose_ood import Likelihood, ProductKDE
from dose_ood.benchmark.toys import flow, gaussian
from dose_ood.plots import (
    calibration_panels,
    decision_regions,
    degradation_curve,
    gaussian_panels,
    histogram_panels,
    histograms,
    loss_curve,
    png_file,
    region_panels,
    roc_panels,
    score_distributions,
    svg,
    svg_file,
)
from dose_ood.plots.style import INK, VARIABLES, plain
from dose_ood.plots.tables import frame
from dose_ood.report import code, figure, page, section, table
from dose_ood.runs import Record
from dose_ood.statistics import Statistics

ROOT = pathlib.Path(__file__).parents[1]


def test_histograms_show_every_statistic_and_every_set():
    inlier, outlier = gaussian(500).select(("norm", "like")), gaussian(200, scale=0.5).select(("norm", "like"))
    drawn = histograms(inlier, {"closer": outlier})
    assert [axes.get_title() for axes in drawn.axes] == ["norm", "like"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["in-distribution", "closer"]


def test_histograms_hold_every_row_even_those_out_of_the_frame():
    inlier = Statistics.from_columns({"x": np.linspace(0, 1, 1000)})
    outlier = Statistics.from_columns({"x": [-1e9, 0.5, np.inf, 1e9]}, on_bad="flag")
    (drawn,) = histogram_panels(inlier, {"far": outlier}, bins=10).each().values()
    own, far = (patch.get_data() for patch in drawn.axes[0].patches)
    assert own.values.sum() == pytest.approx(1)
    assert far.values[[0, -1]].tolist() == pytest.approx([1 / 3, 1 / 3])
    assert far.values.sum() == pytest.approx(1)


def test_every_point_is_in_the_picture():
    """A cloud of one point, which is a stroke of almost no length, is as visible as it is in the page."""
    points = np.array([[-1.0, -1.0], [1.0, 1.0], [-0.5, 0.5], [0.5, -0.5]])
    drawn = gaussian_panels(points, gaussian(50), 100).each()["(a) two coordinates"]
    pixels = np.asarray(Image.open(io.BytesIO(png_file(drawn))).convert("RGB")).astype(int)
    red = (pixels[:, :, 0] > 180) & (pixels[:, :, 1] < 130)
    blue = (pixels[:, :, 2] > 150) & (pixels[:, :, 0] < 130)
    assert red.sum() > 60
    middle = pixels.shape[0] // 2
    assert min(blue[:middle].sum(), blue[middle:].sum()) > 5


def test_the_frame_keeps_the_inliers_visible():
    inlier = np.random.default_rng(0).normal(size=5000)
    low, high = frame(inlier, [np.full(10, 1e12)])
    width = np.ptp(np.quantile(inlier, [0.001, 0.999]))
    assert high - low == pytest.approx(3 * width)
    assert frame(np.full(5, 7.0), []) == (3.5, 10.5)  # a constant still has a place


def test_decision_regions_shade_what_is_atypical():
    train, inlier, outlier = flow(2000), flow(300, seed=1), flow(300, outlier=True, seed=2)
    methods = {"kde": ProductKDE(discard=0.1).fit(train.values), "like": Likelihood(discard=0.1).fit(train.values)}
    drawn = decision_regions(methods, inlier, outlier, "latent", "jac", grid=60)
    assert [axes.get_title() for axes in drawn.axes] == ["kde", "like"]
    for axes, method in zip(drawn.axes, methods.values(), strict=True):
        borders = [Path(ring) for each in axes.collections for path in each.get_paths() for ring in path.to_polygons()]
        for point in ((-4000.0, -2000.0), (-3760.0, -2240.0)):
            inside = sum(border.contains_point(point) for border in borders) % 2 == 1  # a hole has two borders
            row = np.array([[sum(point), *point]])
            assert inside == (method.predict(row)[0] == -1)


def test_regions_of_a_vae_take_the_rate_away():
    """The likelihood is distortion − rate: its border rises with the rate, one for one."""
    random = np.random.default_rng(0)
    table_ = Statistics.from_columns({"distortion": random.normal(size=800), "rate": random.normal(size=800)})
    rows = np.stack([table_["distortion"] - table_["rate"], table_["distortion"], table_["rate"]], axis=1)
    method = Likelihood(discard=0.5).fit(rows)
    (drawn,) = region_panels({"x": method}, table_, table_, "distortion", "rate", sign=-1.0).each().values()
    corners = np.concatenate([path.vertices for each in drawn.axes[0].collections for path in each.get_paths()])
    border = corners[np.abs(corners).max(axis=1) < 2]
    assert np.polyfit(border[:, 1], border[:, 0], 1)[0] == pytest.approx(1, abs=0.05)
    strokes = [patch for patch in drawn.axes[0].patches if not patch.get_fill()]
    assert [len(patch.get_path().vertices) for patch in strokes] == [1000, 1000]  # 500 points each


def test_curves_show_what_they_are_given():
    curve = degradation_curve([1, 10], {"useless": [1.0, 0.9]})
    assert curve.axes[0].lines[-1].get_ydata().tolist() == [1.0, 0.9]
    log = [Record(20, 40, 0, 9.0, 1.0, 5.0), Record(40, 40, 0, 7.0, 0.8, 5.0, epoch_loss=8.0, held_out=7.5)]
    training, held_out = loss_curve(log).axes[0].lines
    assert training.get_ydata().tolist() == [9.0, 7.0]
    assert held_out.get_xydata().tolist() == [[40.0, 7.5]]
    scores = score_distributions(np.arange(9.0), np.arange(9.0), {"far": np.full(3, -99.0)}, threshold=1.0)
    assert [text.get_text() for text in scores.legends[0].get_texts()][-2:] == ["far", "threshold"]
    assert scores.axes[0].lines[0].get_xdata() == [1.0, 1.0]
    lines = {"a": (np.array([0.0, 1.0]), np.array([0.0, 1.0])), "b": (np.array([0.0, 0.5]), np.array([0.0, 0.7]))}
    (roc,) = roc_panels({"set": lines}).each().values()
    assert roc.axes[0].lines[2].get_xydata().tolist() == [[0.0, 0.0], [0.5, 0.7]]
    bars = calibration_panels(lines, 0.1, {"b": (np.array([0.5, 0.5]), np.array([0.3, 0.7]))}).each()["b"]
    assert [bar.get_height() for bar in bars.axes[0].patches] == pytest.approx([30, 70])


def test_a_figure_in_a_page_takes_its_colours_and_two_do_not_meet():
    first, second = (svg(degradation_curve([1, 10], {"x": [1.0, end]}), "a curve") for end in (0.9, 0.8))
    for text in (first, second):
        colours = set(re.findall(r": ?#[0-9a-f]{6}", re.sub(r"var\([^)]*\)", "", text)))
        assert not colours, "every colour is a variable"
        assert f"var(--ink, {INK})" in text
        assert "font-family" not in text
        root = ElementTree.fromstring(text)  # noqa: S314  # our own
        assert (root.get("role"), root.get("aria-label")) == ("img", "a curve")
        ids = {each.get("id") for each in root.iter() if each.get("id")}
        used = set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", text))
        assert {name for pair in used for name in pair if name} <= ids
    assert not set(re.findall(r' id="([^"]*)"', first)) & set(re.findall(r' id="([^"]*)"', second))
    assert len(VARIABLES) == 12


@pytest.mark.parametrize("name", ["$x$ {", "_hidden", "a\x00b\ud800", "<b>&\"'", "漢字", "$" * 3, "long " * 99])
def test_any_name_can_be_a_label(name):
    inlier = Statistics.from_columns({"x": np.linspace(0, 1, 50)})
    panels = histogram_panels(inlier, {name: inlier})
    drawn = panels.together()
    assert drawn.legends[0].get_texts()[1].get_text() == plain(name)
    ElementTree.fromstring(svg(drawn, name))  # noqa: S314  # our own
    ElementTree.fromstring(svg_file(drawn))  # noqa: S314  # our own
    assert png_file(drawn).startswith(b"\x89PNG")


def test_report_is_one_escaped_page_without_foreign_parts():
    drawing = svg(degradation_curve([1, 10], {"<b>": [1.0, 0.9]}))
    ElementTree.fromstring(drawing)  # noqa: S314  # our own
    body = section("<i>", "a & b", table(["x", "<y>"], [["<script>", 0.5]]), figure(drawing, "<u>"), code("<s>"))
    text = page("<title>", "<lead>", [body], "<foot>")
    for tag in ("<i>", "<y>", "<script", "<u>", "<lead>", "<foot>", "<s>"):
        assert tag not in text
    assert set(re.findall(r"https?://\S+?(?=\")", text)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.slow
def test_the_demo_ends_in_a_report(tmp_path):
    command = [sys.executable, ROOT / "examples" / "demo.py", "--output", tmp_path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "The report is in" in done.stdout
    assert "off one axis" in (tmp_path / "report.html").read_text(encoding="utf-8")
