"""The report in a real browser: light, dark, on a phone, by keyboard and on paper."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # also when this folder is run alone
from bench_folder import HOSTILE, OUTLIERS, pictures, write_folder
from dose_ood.benchmark.results import TEST
from dose_ood.report.benchmark import benchmark_report
from dose_ood.report.evidence import gather
from dose_ood.report.pictures import Drawn

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
WIDE, PHONE = {"width": 1360, "height": 900}, {"width": 375, "height": 780}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("bench"), rows=200)
    grey = pictures(TEST, 8)
    drawn = Drawn(grey, dict.fromkeys((TEST, *OUTLIERS), (grey, grey[::-1])))
    path = folder / "report.html"
    found = gather(folder)
    one = replace(found.results.study, outliers={HOSTILE: OUTLIERS[HOSTILE]})  # fewer figures take less time
    found = replace(found, results=replace(found.results, study=one))
    path.write_text(benchmark_report(found, folder, drawn)[0], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as runner:
        running = runner.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def visit(browser, place):
    """Open the page; at the end, nothing may have been logged, asked for or popped up."""
    contexts, complaints = [], []

    def opened(viewport=WIDE, scheme="light"):
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce"))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on(
            "request",
            lambda request: complaints.append(request.url) if request.url[:5] not in ("file:", "data:") else None,
        )
        page.goto(place.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


def colour_of(page, selector: str, name: str = "color") -> str:
    return page.eval_on_selector(selector, f"node => getComputedStyle(node)['{name}']")


def test_dark_and_light_reach_the_figures(visit):
    light, dark = visit(scheme="light"), visit(scheme="dark")
    assert colour_of(light, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert colour_of(dark, "body", "backgroundColor") == "rgb(21, 23, 27)"
    assert colour_of(light, "figure svg text", "fill") != colour_of(dark, "figure svg text", "fill")
    painted = (
        "nodes => nodes.filter(n => ['rgb(255, 255, 255)', 'rgb(0, 0, 0)'].includes(getComputedStyle(n).fill)).length"
    )
    for page in (light, dark):  # no white boxes, and nothing black on black
        assert page.eval_on_selector_all("figure svg text", painted) == 0
        assert page.eval_on_selector_all("figure svg [id*=patch_] path[style*=fill]", painted) == 0


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_wider_than_the_screen(visit, viewport):
    page = visit(viewport)
    page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    sizes = page.eval_on_selector_all("figure svg, img", "all => all.map(n => n.getBoundingClientRect().width)")
    assert min(sizes) > 0
    assert max(sizes) <= viewport["width"]


def test_contents_stay_in_sight_and_lead_to_their_sections(visit):
    page = visit()
    page.click("nav a[href='#provenance']")
    assert page.evaluate("scrollY") > 2000
    assert page.eval_on_selector("nav", "nav => nav.getBoundingClientRect().top") >= 0
    assert page.locator("#provenance").is_visible()


def test_the_keyboard_is_enough(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    closed = page.locator("details:not([open]) summary").first
    closed.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")


def test_hostile_names_are_shown_and_not_run(visit):
    page = visit()
    assert page.locator("table").first.locator("th", has_text=HOSTILE).count() == 1
    assert page.locator("script, img:not([alt]), main b, main i").count() == 0
    assert page.eval_on_selector_all("img", "all => all.every(n => n.complete && n.naturalWidth > 0)")


def test_paper_shows_everything_on_white(visit):
    page = visit(scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert colour_of(page, "body", "backgroundColor") == "rgb(255, 255, 255)"
    hidden = "all => all.filter(n => n.getBoundingClientRect().height === 0).length"
    assert page.eval_on_selector_all("details table, details svg", hidden) == 0
    assert page.locator("nav").is_hidden()
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 50_000
