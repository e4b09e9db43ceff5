import pathlib
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.path import Path

from dose_ood import Likelihood, ProductKDE
from dose_ood.benchmark.toys import flow, gaussian
from dose_ood.plots import decision_regions, degradation_curve, histograms, loss_curve, score_distributions, svg
from dose_ood.report import code, figure, page, section, table
from dose_ood.runs import Record

ROOT = pathlib.Path(__file__).parents[1]


def test_histograms_show_every_statistic_and_every_set():
    inlier, outlier = gaussian(500).select(("norm", "like")), gaussian(200, scale=0.5).select(("norm", "like"))
    drawn = histograms(inlier, {"closer": outlier})
    assert [axes.get_title() for axes in drawn.axes] == ["norm", "like"]
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == ["in-distribution", "closer"]


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


def test_curves_show_what_they_are_given():
    curve = degradation_curve([1, 10], {"useless": [1.0, 0.9]})
    assert curve.axes[0].lines[0].get_ydata().tolist() == [1.0, 0.9]
    log = [Record(20, 40, 0, 9.0, 1.0, 5.0), Record(40, 40, 0, 7.0, 0.8, 5.0, epoch_loss=8.0, held_out=7.5)]
    training, held_out = loss_curve(log).axes[0].lines
    assert training.get_ydata().tolist() == [9.0, 7.0]
    assert held_out.get_xydata().tolist() == [[40.0, 7.5]]
    scores = score_distributions(np.arange(9.0), np.arange(9.0), {"far": np.full(3, -99.0)}, threshold=1.0)
    assert [text.get_text() for text in scores.axes[0].get_legend().get_texts()][-2:] == ["far", "threshold"]


def test_report_is_one_escaped_page_without_foreign_parts():
    drawing = svg(degradation_curve([1, 10], {"<b>": [1.0, 0.9]}))
    ElementTree.fromstring(drawing)  # noqa: S314  # our own
    body = section("<i>", "a & b", table(["x", "<y>"], [["<script>", 0.5]]), figure(drawing, "<u>"), code("<s>"))
    text = page("<title>", "<lead>", [body], "<foot>")
    for tag in ("<i>", "<y>", "<script", "<u>", "<lead>", "<foot>", "<s>"):
        assert tag not in text
    assert (
        "http"
        not in text.replace("http://www.w3.org/", "").replace("https://matplotlib.org/", "").lower().split("<svg")[0]
    )


@pytest.mark.slow
def test_the_demo_ends_in_a_report(tmp_path):
    command = [sys.executable, ROOT / "examples" / "demo.py", "--output", tmp_path]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "The report is in" in done.stdout
    assert "off one axis" in (tmp_path / "report.html").read_text(encoding="utf-8")
