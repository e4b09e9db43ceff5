"""A detector as one ONNX model: what it takes, what it gives, and what is written about it."""

import json
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, helper

import dose_ood
from dose_ood.detector import Detector
from dose_ood.export.estimators import verdict
from dose_ood.export.graph import FLOAT64, Graph, Value, joined
from dose_ood.export.noise import Noise
from dose_ood.storage import Json

OPSET, IR_VERSION = 13, 7  # the oldest that have all it needs: what reads files of 2020 reads these
ROWS = "n"
DESCRIPTION = (
    "A DoSE detector. Higher scores are more typical. p_value = (1 + held-out rows that are no more typical) / (1 + "
    "held-out rows); is_typical = the score reaches the threshold; is_bad = a statistic is not a finite number."
)


def table_model(detector: Detector) -> ModelProto:
    """Takes `table`, the statistics, float64 of shape (n, columns)."""
    graph = Graph()
    rows = graph.input("table", FLOAT64, (ROWS, len(detector.statistics)))
    return _finished(detector, graph, rows, {"input": "table"})


def image_model(detector: Detector) -> ModelProto:
    """Takes `images`, uint8 of shape (n, c, h, w), and `noise`, which `noise_for` makes of them; needs torch.

    A Glow without noise takes images alone.
    """
    from dose_ood.export.glow import glow_statistics
    from dose_ood.export.vae import vae_statistics
    from dose_ood.guard import Guard
    from dose_ood.models.glow import MIDDLE
    from dose_ood.models.vae import BetaVAE

    guard = Guard.of(detector)
    model, graph = guard.model, Graph()
    drawn: Noise | None
    images = graph.input("images", np.dtype(np.uint8), (ROWS, *guard.shape))
    if isinstance(model, BetaVAE):
        drawn = Noise("normal", (model.config.draws, model.config.latent))
        found = vae_statistics(model, images, graph.input("noise", FLOAT64, (ROWS, *drawn.shape)))
    elif model.config.noise:
        drawn = Noise("uniform", guard.shape)
        found = glow_statistics(model, images, graph.input("noise", FLOAT64, (ROWS, *drawn.shape)))
    else:
        drawn = None
        found = glow_statistics(model, images, MIDDLE)
    rows = joined([found[name].expand(1) for name in detector.statistics], 1)
    facts: dict[str, Json] = {
        "input": "images",
        "shape": list(guard.shape),
        "noise": None if drawn is None else {"distribution": drawn.distribution, "shape": list(drawn.shape)},
        "model": {} if detector.model is None else detector.model.document,
    }
    return _finished(detector, graph, rows, facts)


def _finished(detector: Detector, graph: Graph, rows: Value, facts: Mapping[str, Json]) -> ModelProto:
    outputs = {name: (value, (ROWS,)) for name, value in verdict(detector.estimator, rows).items()}
    described = graph.finish("dose", {**outputs, "statistics": (rows, (ROWS, len(detector.statistics)))})
    model = helper.make_model(
        described,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="dose-ood",
        producer_version=dose_ood.__version__,
        doc_string=DESCRIPTION,
    )
    helper.set_model_props(model, _metadata(detector, facts))
    return model


def _metadata(detector: Detector, facts: Mapping[str, Json]) -> dict[str, str]:
    """Strings by name, all but the plainest as JSON."""
    estimator = detector.estimator
    every: dict[str, Json] = {
        **facts,
        "statistics": list(detector.statistics),
        "estimator": estimator.kind,
        "threshold": estimator.offset_,
        "held_out_rows": len(estimator.calibration_scores_),
        "version": dose_ood.__version__,
        "provenance": detector.provenance,
    }
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in every.items()
    }
