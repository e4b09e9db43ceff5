"""The page, in a browser."""

import threading
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from serving import image_detector, npy, png, table_detector

from dose_ood.service.app import create_app
from dose_ood.service.run import listening
from dose_ood.service.settings import Settings
from standin import stripes

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
TOKEN = "-".join(["letters"] * 4)

playwright = pytest.importorskip("playwright.sync_api", reason="the page is tested with Playwright")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"the page is tested in {CHROMIUM}, which is not there")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield running
        running.close()


def serving(app):
    """The address of an app on a thread of its own, and what ends it."""
    listener = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()

    def end():
        server.should_exit = True
        thread.join()
        listener.close()

    return f"http://127.0.0.1:{listener.getsockname()[1]}", end


@pytest.fixture(scope="module")
def place():
    address, end = serving(create_app(image_detector(), Settings(window=100), name="stripes"))
    yield address
    end()


@pytest.fixture
def page(browser, place):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    found = context.new_page()
    found.set_default_timeout(20_000)
    found.problems = []
    found.on("pageerror", lambda error: found.problems.append(str(error)))
    found.goto(place)
    found.wait_for_selector("#main:not([hidden])")
    yield found
    assert not found.problems
    context.close()


def upload(page, name, content, kind=""):
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": content})


def test_a_picture_gets_its_verdict_and_its_reasons(page):
    assert page.inner_text("#name") == "stripes"
    upload(page, "stripes.png", png(stripes(1, seed=9)[0, 0]), "image/png")
    page.wait_for_selector(".sample")
    assert page.inner_text(".sample .verdict") == "✓ typical"
    assert page.locator(".sample canvas").count() == 2
    assert sorted(page.locator(".chart b").all_inner_texts()) == ["iwae", "rate", "score"]
    assert page.locator(".chart .mark").count() == 3
    upload(page, "black.png", png(np.zeros((8, 8), np.uint8)), "image/png")
    page.wait_for_selector(".sample.odd")
    assert page.inner_text(".sample.odd .verdict") == "✕ atypical"
    assert page.inner_text(".chart.guilty b") in ("rate", "iwae")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_bad_file_is_told_what_was_expected(page):
    upload(page, "<img src=x onerror=alert(1)>.png", png(np.zeros((4, 6), np.uint8)), "image/png")
    page.wait_for_selector("#problem:not([hidden])")
    said = page.inner_text("#problem")
    assert said == "<img src=x onerror=alert(1)>.png: expected a picture of 8×8 pixels, grey, got 6×4"
    assert page.locator(".sample").count() == page.locator("#problem img").count() == 0
    upload(page, "fine.npy", npy(stripes(3, seed=9)))
    page.wait_for_selector(".sample")
    assert page.locator("#problem").is_hidden()
    assert page.locator(".sample").count() == 3


def test_a_table_can_be_dropped_too(page):
    upload(page, "table.csv", b"iwae,rate\n-9e9,3\n,1\n", "text/csv")
    page.wait_for_selector(".sample")
    assert page.inner_text(".file .soft >> nth=0") == "2 samples, 2 atypical, 1 not measurable"
    assert "Rate is" not in page.inner_text(".sample >> nth=0")


def test_the_stream_is_shown_as_it_comes(page):
    before = int(page.inner_text("#rows").replace(",", "").replace("–", "0"))
    upload(page, "black.npy", npy(np.zeros((30, 1, 8, 8), np.uint8)))
    page.wait_for_selector("#latest li")
    page.wait_for_selector("#drift.yes")
    assert page.inner_text("#drift-word") == "Drifted"
    assert int(page.inner_text("#rows")) >= before + 30
    assert page.locator("#latest canvas").count() >= 1
    assert page.locator("#history rect.high").count() >= 1
    assert page.inner_text("#pulse") == "live"


def test_the_keyboard_reaches_the_upload(page):
    page.bring_to_front()
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "file":
            break
    assert page.evaluate("document.activeElement.id") == "file"
    asked = []
    page.on("filechooser", lambda chooser: asked.append(chooser))
    for _ in range(20):  # on a busy machine, a browser that has just come to the front may miss a key
        page.keyboard.press("Space")
        page.wait_for_timeout(500)
        if asked:
            break
    assert asked


def test_a_token_is_asked_for_and_kept_for_the_tab(browser):
    address, end = serving(create_app(table_detector(), token=TOKEN))
    try:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#gate:not([hidden])")
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector("#gate-error:not([hidden])")
        assert page.inner_text("#gate-error") == "That is not the service's token."
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#main:not([hidden])")
        upload(page, "table.csv", b"rate,like\n0,0\n", "text/csv")
        page.wait_for_selector(".sample")
        page.reload()
        page.wait_for_selector("#main:not([hidden])")
        assert context.new_page().goto(address).ok
        assert page.evaluate("localStorage.length") == 0
        context.close()
    finally:
        end()
