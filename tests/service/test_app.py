"""Who may come in, what is said to the others, and what is remembered."""

import json
import subprocess
import sys

import numpy as np
import pytest
from serving import ODD, Client, columns, outputs, rows, shared, table_detector

import dose_ood.cli.serve as command
from dose_ood import Detector, InputError, ProductKDE, Statistics, WhitenedSVM
from dose_ood.cli import app as cli
from dose_ood.noise import generator
from dose_ood.service.app import create_app
from dose_ood.service.explaining import charts
from dose_ood.service.run import read_token, serve
from dose_ood.service.settings import MIB, Settings

TOKEN = "-".join(["letters"] * 4)
ODD_ROW = {"inputs": columns(**{name: [value] for name, value in ODD.items()})}


def test_a_token_is_asked_for_where_it_matters():
    client = Client(table_detector(), token=TOKEN)
    for path in ("/", "/page.css", "/page.js", "/charts.js", "/favicon.svg", "/v2/health/live", "/v2/health/ready"):
        assert client.get(path).status_code == 200
    for path in ("/detector", "/stream", "/metrics", "/v2", "/v2/models/detector", "/nothing"):
        for sent in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            answer = client.get(path, headers=sent)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "expected the header Authorization: Bearer TOKEN" in answer.json()["error"]
    assert client.post("/score", b"x").status_code == 401
    assert client.infer(ODD_ROW).status_code == 401
    assert client.get("/v2", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200


def test_pages_of_other_sites_are_kept_out():
    client = Client(table_detector(), hosts=("localhost", "[::1]"))
    for host in ("localhost:80", "[::1]:80", "LOCALHOST"):
        assert client.get("/v2", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "", "localhost.evil.example", "[::2]"):
        assert client.get("/v2", headers={"Host": host}).status_code == 403
    for origin, status in (("http://localhost", 200), ("http://evil.example", 403), ("null", 403)):
        assert client.get("/v2", headers={"Origin": origin}).status_code == status


def test_every_answer_has_its_headers():
    client = shared(table_detector())
    for path in ("/", "/nothing", "/stream"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
    assert client.get("/stream").headers["Cache-Control"] == "no-store"


def test_the_page_needs_nothing_from_elsewhere():
    client = shared(table_detector())
    for path in ("/", "/page.css", "/page.js", "/charts.js"):
        text = client.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text.replace("http-equiv", "")
        assert "innerHTML" not in text
        assert "style=" not in text
        assert "onclick" not in text


def test_unknown_paths_and_methods():
    client = shared(table_detector())
    answer = client.get("/docs")
    assert (answer.status_code, answer.json()["error"][:31]) == (404, "expected one of /, /score, /det")
    answer = client.get("/score")
    assert (answer.status_code, answer.json()["error"]) == (405, "expected POST at /score, got GET")


def test_bodies_are_bounded():
    client = shared(table_detector(), Settings(body=1000))
    answer = client.post("/score", b"x" * 1001, "text/csv")
    assert (answer.status_code, answer.json()["error"]) == (
        413,
        "expected a body of at most 1,000 bytes, got 1,001 or more",
    )

    async def chunks():
        for _ in range(3):
            yield b"x" * 400

    assert client.post("/score", chunks(), "text/csv").status_code == 413
    answer = client.post("/score", b"rate,like\n0,0\n", "text/csv", {"Content-Encoding": "gzip"})
    assert (answer.status_code, "without Content-Encoding, got 'gzip'" in answer.json()["error"]) == (415, True)
    assert client.service.bodies.held == 0
    full = shared(table_detector(), Settings(bodies=10)).post("/score", b"rate,like\n0,0\n", "text/csv")
    assert (full.status_code, full.headers["Retry-After"]) == (503, "1")


def test_counts_shares_and_drift_are_told():
    client = Client(table_detector(), Settings(window=100, kept=3))
    fresh = rows(100, 9)
    client.infer({"inputs": columns(rate=fresh["rate"], like=fresh["like"])})
    state = client.get("/stream").json()
    expected = table_detector().score(fresh)
    assert state["rows"] == 100
    assert state["flagged"] == int((~expected.is_typical).sum())
    test = table_detector().group_test(100).test(expected.score)
    assert state["drift"] == pytest.approx(
        {"gap": test.gap, "threshold": test.threshold, "p_value": test.p_value, "drifted": False, "size": 100}
    )
    shifted = fresh.values + 1.5
    client.infer({"inputs": columns(rate=shifted[:, 0], like=shifted[:, 1])})
    client.infer(ODD_ROW)
    state = client.get("/stream").json()
    assert state["drift"]["drifted"]
    assert [each["number"] for each in state["latest"]] == [state["flagged"] - back for back in range(3)]
    assert state["latest"][0]["parts"][0]["name"] == "rate"
    assert sum(rows for rows, _ in state["history"]["buckets"]) == 201
    lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if not line.startswith("#"))
    assert float(lines["dose_rows_total"]) == 201
    assert float(lines["dose_flagged_rows_total"]) == state["flagged"]
    assert float(lines["dose_drifted"]) == 1
    assert float(lines["dose_drift_p_value"]) == pytest.approx(state["drift"]["p_value"])
    assert float(lines["dose_flagged_share"]) == pytest.approx(state["window"]["flagged_share"])
    assert float(lines['dose_requests_total{endpoint="infer",status="200"}']) == 3
    assert float(lines["dose_queue_depth"]) == 0
    assert float(lines["dose_batch_rows_sum"]) == 201
    client.infer({"inputs": columns(rate=[None], like=[0.0])})
    assert client.get("/stream").json()["drift"]["gap"] is None


def test_drift_is_tested_early_and_nothing_is_kept_if_told_so():
    client = Client(table_detector(), Settings(kept=0))
    assert client.get("/stream").json()["drift"] is None
    assert "dose_drift_p_value NaN" in client.get("/metrics").text
    fresh = rows(30, 9)
    client.infer({"inputs": columns(rate=fresh["rate"], like=fresh["like"])})
    client.infer(ODD_ROW)
    state = client.get("/stream").json()
    assert state["drift"]["size"] == 25
    assert state["latest"] == []
    assert state["flagged"] >= 1


def test_a_detector_whose_scores_tie_serves_without_a_drift_test():
    flat = Statistics(("rate",), np.repeat([[1.0]], 50, axis=0))
    client = Client(Detector.fit(flat, Statistics(("rate",), flat.values[1:]), ProductKDE()))
    assert "held-out scores must differ" in client.get("/stream").json()["no_drift_test"]
    assert client.infer({"inputs": columns(rate=[1.0])}).status_code == 200


@pytest.mark.parametrize("kind", [ProductKDE, WhitenedSVM])
def test_histograms_of_statistics_are_of_held_out_values(kind):
    random = np.random.default_rng(0)
    rows = random.normal(size=(1_800, 2)) * [3.0, 1.0] + [0.0, 50.0]
    rows[:, 1] = np.where(rows[:, 1] > 50, 52.0, rows[:, 1])  # a value that many rows have
    train, held_out = rows[:900], rows[900:]
    detector = Detector.fit(*(Statistics(("rate", "like"), rows) for rows in (train, held_out)), kind())
    for column, name in enumerate(detector.statistics):
        chart, values = charts(detector)["statistics"][name], held_out[:, column]
        assert chart["of"] == "value"
        assert [chart["low"], chart["high"]] == np.quantile(
            values, [1 / 128, 127 / 128], method="inverted_cdf"
        ).tolist()
        edges = np.linspace(chart["low"], chart["high"], len(chart["counts"]) + 1)
        expected = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        np.testing.assert_allclose(np.cumsum(chart["counts"]), np.cumsum(expected), atol=0.01)


def test_the_histogram_of_a_constant_is_one_bar():
    rows = np.column_stack([np.full(200, 7.0), np.random.default_rng(0).normal(size=200)])
    detector = Detector.fit(Statistics(("rate", "like"), rows), Statistics(("rate", "like"), rows[1:]), ProductKDE())
    chart = charts(detector)["statistics"]["rate"]
    assert (chart["low"], chart["high"], sorted(chart["counts"])[-2:]) == (6.5, 7.5, [0.0, 1.0])


def test_without_held_out_values_the_histogram_is_that_of_contributions():
    detector = table_detector(WhitenedSVM)
    detector.estimator.calibration_quantiles_ = detector.estimator.calibration_quantiles_[:0]
    found = charts(detector)
    chart = found["statistics"]["like"]
    assert chart["of"] == "contribution"
    assert sum(chart["counts"]) == sum(found["score"]["counts"]) == 400
    assert found["score"]["high"] == detector.estimator.calibration_scores_[-1]


def test_settings_and_places_are_checked(tmp_path):
    for wrong in ({"batch": 0}, {"wait": -1.0}, {"window": 1}, {"alpha": 1.5}):
        with pytest.raises(InputError, match="must be"):
            Settings(**wrong)
    for text in ("short", "with a space in the middle", "x" * 5000, "ünsafe-letters-in-it"):
        (tmp_path / "token").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="expected a token of 16 or more"):
            read_token(tmp_path / "token")
    with pytest.raises(InputError, match="cannot read the token"):
        read_token(tmp_path / "none")
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert read_token(tmp_path / "token") == TOKEN
    options = {"name": "x", "port": 0, "started": print}
    for host in ("0.0.0.0", "::", "example.org"):  # noqa: S104
        with pytest.raises(InputError, match="which needs a --token-file"):
            serve(table_detector(), Settings(), host=host, token=None, **options)
    with pytest.raises(InputError, match="cannot listen on 203"):
        serve(table_detector(), Settings(), host="203.0.113.1", token=TOKEN, **options)


def test_a_missing_dependency_is_named():
    for missing in command.SERVING:
        with pytest.raises(InputError, match=r"pip install \"dose-ood\[serve\]\""), command.needs_serving():
            raise ModuleNotFoundError("no", name=f"{missing}.part")
    with pytest.raises(ModuleNotFoundError), command.needs_serving():
        raise ModuleNotFoundError("no", name="other")
    with pytest.raises(InputError, match="does not exist"):
        cli(["serve", "/nowhere"], standalone_mode=False)


NO_TORCH = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "PIL"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Nowhere())
from dose_ood import Detector, InputError
from dose_ood.service.app import create_app
create_app(Detector.load(sys.argv[1]))
from dataclasses import replace
from dose_ood.storage import Directory
try:
    create_app(replace(Detector.load(sys.argv[1]), model=Directory({}, {"model": {}})))
except InputError as error:
    print(error)
"""


def test_a_table_is_served_without_torch(tmp_path):
    table_detector().save(tmp_path / "detector")
    command = [sys.executable, "-c", NO_TORCH, str(tmp_path / "detector")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == 'the detector holds a model, which needs PyTorch: pip install "dose-ood[torch]"'


def test_an_upload_of_markup_stays_text():
    name = "<img src=x onerror=alert(1)>"
    random = generator("markup")
    tables = [Statistics((name,), random.normal(size=(200, 1))) for _ in range(2)]
    client = Client(Detector.fit(*tables, ProductKDE()), name="<b>")
    assert client.get("/detector").headers["Content-Type"] == "application/json"
    assert json.loads(client.get("/detector").text)["statistics"] == [name]
    assert outputs(client.infer({"inputs": columns(**{name: [0.0]})}, name="%3Cb%3E"))["is_typical"] == [True]


def test_the_defaults_bound_the_memory():
    settings = create_app(table_detector()).state.service.settings
    assert settings.body <= 16 * MIB
    assert settings.bodies <= 64 * MIB
