"""The file, the command, what it says of itself, and what it does not need."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported import OUTPUTS, Session, assert_same

import dose_ood
from dose_ood import Detector, InputError, ProductKDE, Statistics
from dose_ood.cli import app
from dose_ood.export import noise_for, write_onnx
from dose_ood.export.file import IR_VERSION, OPSET, table_model
from dose_ood.guard import with_model
from dose_ood.measure import measure
from dose_ood.models.registry import Loaded, build
from dose_ood.models.vae import VAEConfig
from dose_ood.noise import content_normal, content_uniform, generator
from standin import stripes

DOCS = Path(__file__).parents[2] / "docs" / "onnx.md"
NAMES = ("rate", "iwae")


@pytest.fixture(scope="module")
def plain() -> Detector:
    random = generator("exported file")
    return Detector.fit(*(Statistics(NAMES, random.normal(size=(300, 2))) for _ in range(2)), ProductKDE(discard=0.1))


@pytest.fixture(scope="module")
def whole() -> Detector:
    model = build(VAEConfig(shape=(1, 8, 8), depth=4, components=5), seed=3).eval()
    tables = [measure(model, stripes(count, seed)) for count, seed in ((100, 0), (60, 1))]
    return with_model(Detector.fit(*tables, ProductKDE(), NAMES), Loaded(model, {"seed": 3}))


def test_the_command_writes_what_scores_like_the_detector(tmp_path, plain, capsys):
    plain.save(tmp_path / "detector")
    app(["export", str(tmp_path / "detector"), str(tmp_path / "detector.onnx"), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "output": str(tmp_path / "detector.onnx"),
        "input": "table",
        "bytes": (tmp_path / "detector.onnx").stat().st_size,
    }
    rows = generator("fresh").normal(size=(50, 2)) * 2
    session = Session(onnx.load(tmp_path / "detector.onnx"))
    assert_same(session.table(rows), plain.score(Statistics(NAMES, rows)), 1e-13)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["detector.onnx"]


def test_the_command_on_a_detector_with_a_model(tmp_path, whole, capsys):
    whole.save(tmp_path / "detector")
    app(["export", str(tmp_path / "detector"), str(tmp_path / "images.onnx")], standalone_mode=False)
    assert re.search(r"images\.onnx \(\d+\.\d\d MB\) takes images and noise", capsys.readouterr().out)
    app(["export", str(tmp_path / "detector"), str(tmp_path / "table.onnx"), "--input", "table"], standalone_mode=False)
    assert "takes a table of statistics" in capsys.readouterr().out
    images = stripes(20, 2)
    by_image = Session(onnx.load(tmp_path / "images.onnx")).images(images)
    by_table = Session(onnx.load(tmp_path / "table.onnx")).table(by_image["statistics"])
    for name in OUTPUTS:
        np.testing.assert_array_equal(by_image[name], by_table[name])


def test_what_the_file_says_of_itself(whole):
    from dose_ood.export.file import image_model

    model = image_model(whole)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["input"] == "images"
    assert json.loads(metadata["statistics"]) == list(NAMES)
    assert json.loads(metadata["shape"]) == [1, 8, 8]
    assert json.loads(metadata["noise"]) == {"distribution": "normal", "shape": [16, 2]}
    assert float(metadata["threshold"]) == whole.estimator.offset_
    assert json.loads(metadata["held_out_rows"]) == 60
    assert metadata["estimator"] == "kde"
    assert metadata["version"] == model.producer_version == dose_ood.__version__
    assert json.loads(metadata["provenance"]) == whole.provenance
    assert json.loads(metadata["model"])["provenance"] == {"seed": 3}
    assert (model.ir_version, model.opset_import[0].version, len(model.opset_import)) == (IR_VERSION, OPSET, 1)
    batch = [value.type.tensor_type.shape.dim[0].dim_param for value in (*model.graph.input, *model.graph.output)]
    assert set(batch) == {"n"}


def test_the_same_detector_gives_the_same_bytes(tmp_path, whole):
    for name in ("a.onnx", "b.onnx"):
        assert write_onnx(whole, tmp_path / name) == "images"
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_file_that_cannot_be_written_is_not_there(tmp_path, plain, whole):
    with pytest.raises(InputError, match=r"ends in \.onnx, got .*detector\.bin"):
        write_onnx(plain, tmp_path / "detector.bin")
    with pytest.raises(InputError, match="there is no directory"):
        write_onnx(plain, tmp_path / "nowhere" / "detector.onnx")
    with pytest.raises(InputError, match="holds no model"):
        write_onnx(plain, tmp_path / "detector.onnx", "images")
    assert not list(tmp_path.iterdir())


def test_the_noise_of_a_file(plain, whole):
    images = stripes(5)
    normal = {"noise": '{"distribution": "normal", "shape": [16, 2]}'}
    uniform = {"noise": '{"distribution": "uniform", "shape": [1, 8, 8]}'}
    np.testing.assert_array_equal(noise_for(images, normal), content_normal(images, 16, (2,)))
    np.testing.assert_array_equal(noise_for(images, uniform), content_uniform(images, (1, 8, 8)))
    with pytest.raises(InputError, match="metadata name no noise"):
        noise_for(images, Session(table_model(plain)).metadata)


def test_the_snippet_in_the_documentation_draws_the_same_noise():
    snippet = re.search(r"```python\n(import hashlib.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert snippet is not None
    names: dict[str, object] = {}
    exec(snippet[1], names)  # noqa: S102  # our own documentation
    images = stripes(4)
    normal, uniform = ({"distribution": kind, "shape": [16, 2]} for kind in ("normal", "uniform"))
    np.testing.assert_array_equal(names["noise"](images, normal), content_normal(images, 16, (2,)))
    np.testing.assert_array_equal(names["noise"](images, uniform), content_uniform(images, (16, 2)))


WITHOUT = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Nowhere())
from dose_ood.cli import app
for detector in {detectors}:
    app(["export", detector, detector + ".onnx"], standalone_mode=False)
"""


def without(missing: list[str], *detectors: Path) -> str:
    """Export detectors while packages are missing; what is said at the end, as the last is refused."""
    code = WITHOUT.format(missing=missing, detectors=list(map(str, detectors)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]


def test_a_detector_of_tables_is_exported_without_torch(tmp_path, plain, whole):
    plain.save(tmp_path / "plain")
    whole.save(tmp_path / "whole")
    said = without(["torch", "onnxruntime", "PIL"], tmp_path / "plain", tmp_path / "whole")
    assert said.endswith('InputError: this command needs PyTorch: pip install "dose-ood[torch]"')
    assert (tmp_path / "plain.onnx").read_bytes() == table_model(plain).SerializeToString(deterministic=True)


def test_without_onnx_one_sentence_names_the_extra(tmp_path, plain):
    plain.save(tmp_path / "plain")
    said = without(["onnx"], tmp_path / "plain")
    assert said.endswith('InputError: an ONNX file needs the package onnx: pip install "dose-ood[onnx]"')
    assert not (tmp_path / "plain.onnx").exists()


def test_noise_needs_neither_torch_nor_onnx():
    code = (
        "import sys, numpy as np\nfrom dose_ood.export import noise_for\n"
        'noise_for(np.zeros((1, 1, 8, 8), np.uint8), {"noise": \'{"distribution": "normal", "shape": [2, 2]}\'})\n'
        'assert not {"torch", "onnx", "onnxruntime"} & set(sys.modules)'
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
