"""The Open Inference Protocol, version 2: its JSON, its binary tensors, and what they say about samples."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import dose_ood
from dose_ood.columns import listing
from dose_ood.service.judge import Samples, Verdicts, columns_of
from dose_ood.service.settings import Refusal, Settings
from dose_ood.service.uploads import Taste, as_images, check_images, refusing

IMAGES = "images"
TYPES: dict[str, str] = {
    "BOOL": "|b1",
    **{f"{sign}INT{bits}": f"<{kind}{bits // 8}" for sign, kind in (("", "i"), ("U", "u")) for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ["binary_tensor_data"]


@dataclass(frozen=True)
class Query:
    """An inference request.

    Parameters
    ----------
    samples
        What is asked about.
    outputs
        The names of the tensors wanted, each with whether it is to be binary.
    id
        What the client calls the request.
    """

    samples: Samples
    outputs: Mapping[str, bool]
    id: str | None


def output_names(taste: Taste) -> list[str]:
    """The tensors of an answer."""
    each = (f"{group}/{name}" for group in ("statistics", "contributions") for name in taste.statistics)
    return ["score", "p_value", "is_typical", "is_bad", *each]


def server_metadata() -> dict[str, object]:
    """What `/v2` says."""
    return {"name": "dose-ood", "version": dose_ood.__version__, "extensions": EXTENSIONS}


def model_metadata(name: str, taste: Taste) -> dict[str, object]:
    """What `/v2/models/NAME` says; a detector with a model takes statistics instead of images as well."""
    statistics = [{"name": each, "datatype": "FP64", "shape": [-1]} for each in taste.statistics]
    images = [{"name": IMAGES, "datatype": "UINT8", "shape": [-1, *(taste.shape or ())]}]
    outputs = [
        {"name": each, "datatype": "BOOL" if each.startswith("is_") else "FP64", "shape": [-1]}
        for each in output_names(taste)
    ]
    inputs = statistics if taste.shape is None else images
    return {"name": name, "versions": ["1"], "platform": "dose-ood", "inputs": inputs, "outputs": outputs}


def parse(body: bytes, length: str | None, taste: Taste, settings: Settings) -> Query:
    """Read an inference request; with the header `Inference-Header-Content-Length`, tensors follow the JSON.

    Parameters
    ----------
    body
        The request's body.
    length
        The header's value, None if there is none.
    taste
        What the detector takes.
    settings
        Bounds on images and rows.
    """
    size = len(body)
    if length is not None:
        if not length.isdecimal() or len(length) > 12 or int(length) > len(body):
            raise Refusal(400, f"{LENGTH}: expected a number up to the body's {len(body):,} bytes, got {length[:40]!r}")
        size = int(length)
    document = _object(body[:size])
    inputs = _tensors(document, memoryview(body)[size:], settings)
    identity = document.get("id")
    if not isinstance(identity, str | None) or len(identity or "") > 256:
        raise Refusal(400, "expected an id of at most 256 characters")
    return Query(_samples(inputs, taste, settings), _wanted(document, output_names(taste)), identity)


def _object(text: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = (str(error).splitlines() or [""])[0][:120]
        raise Refusal(400, f"expected a JSON object with inputs, got text that is no JSON: {said}") from error
    if not isinstance(found, dict):
        raise Refusal(400, f"expected a JSON object with inputs, got {type(found).__name__}")
    return found


def _tensors(document: Mapping[str, object], rest: memoryview, settings: Settings) -> dict[str, NDArray[np.generic]]:
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or not inputs:
        raise Refusal(400, "expected inputs, a list of tensors with name, shape, datatype and data, got none")
    found: dict[str, NDArray[np.generic]] = {}
    start = 0
    for each in inputs:
        if not isinstance(each, dict) or not isinstance(name := each.get("name"), str):
            raise Refusal(400, "expected every input to be an object with a name")
        if name in found:
            raise Refusal(400, f"expected one input called {name[:60]!r}, got several")
        shape, datatype = _shape(each, name), each.get("datatype")
        if not isinstance(datatype, str) or datatype not in TYPES:
            raise Refusal(422, f"input {name[:60]!r}: expected a datatype of {', '.join(TYPES)}, got {datatype!r:.40}")
        parameters = each.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            found[name] = _from_json(each.get("data"), shape, datatype, name)
            continue
        if type(size) is not int or not 0 <= size <= len(rest) - start:
            raise Refusal(
                400, f"input {name[:60]!r}: expected binary_data_size up to {len(rest) - start:,}, got {size!r:.40}"
            )
        found[name] = _from_bytes(rest[start : start + size], shape, datatype, name)
        start += size
    if start != len(rest):
        raise Refusal(400, f"expected {start:,} bytes of tensors after the JSON, as the inputs say, got {len(rest):,}")
    return found


def _shape(tensor: Mapping[str, object], name: str) -> tuple[int, ...]:
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 4
        or not all(type(length) is int and 0 <= length < 2**31 for length in shape)
    ):
        raise Refusal(400, f"input {name[:60]!r}: expected a shape of one to four whole numbers, got {shape!r:.60}")
    return tuple(shape)


def _from_bytes(data: memoryview, shape: tuple[int, ...], datatype: str, name: str) -> NDArray[np.generic]:
    dtype = np.dtype(TYPES[datatype])
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise Refusal(422, f"input {name[:60]!r}: expected {expected:,} bytes of {datatype}, got {len(data):,}")
    return np.frombuffer(data, dtype).reshape(shape)


def _from_json(data: object, shape: tuple[int, ...], datatype: str, name: str) -> NDArray[np.generic]:
    where = f"input {name[:60]!r}"
    if not isinstance(data, list):
        raise Refusal(400, f"{where}: expected data, a list of numbers, got {type(data).__name__}")
    try:
        array = np.asarray(data)
    except ValueError:
        raise Refusal(422, f"{where}: expected as many numbers in every row, got rows of different lengths") from None
    if array.dtype.kind == "O" and array.ndim == 1 and all(_is_number(item) for item in data):
        array = array.astype(np.float64)  # null is a missing value
    if array.dtype.kind not in "biuf":
        raise Refusal(422, f"{where}: expected numbers, got something else")
    if array.size != math.prod(shape):
        raise Refusal(422, f"{where}: expected {math.prod(shape):,} numbers, as its shape says, got {array.size:,}")
    dtype = np.dtype(TYPES[datatype])
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if array.dtype.kind not in "iu" or (array.size and (array.min() < bounds.min or array.max() > bounds.max)):
            raise Refusal(422, f"{where}: expected whole numbers from {bounds.min} to {bounds.max}, got others")
    with np.errstate(over="ignore"):
        return array.astype(dtype).reshape(shape)


def _is_number(item: object) -> bool:
    return item is None or (isinstance(item, int | float) and abs(item) < 1e308) or isinstance(item, float)


def _samples(inputs: Mapping[str, NDArray[np.generic]], taste: Taste, settings: Settings) -> Samples:
    with refusing("cannot read the inputs"):
        if IMAGES in inputs and taste.shape is not None and IMAGES not in taste.statistics:
            images = inputs[IMAGES]
            if images.dtype != np.uint8:
                raise Refusal(422, f"input {IMAGES!r}: expected datatype UINT8, got {images.dtype}")
            count = check_images(images.shape, taste.shape, settings)
            if not count:
                raise Refusal(422, "expected at least one sample, got none")
            return Samples(images=as_images(images.astype(np.uint8, copy=False), taste.shape))
        missing = [name for name in taste.statistics if name not in inputs]
        if missing:
            also = "" if taste.shape is None else f"{IMAGES!r}, or "
            raise Refusal(422, f"expected inputs {also}{listing(taste.statistics)}, got {listing(list(inputs))[:300]}")
        columns = {}
        for name in taste.statistics:
            column = inputs[name]
            if column.ndim > 2 or (column.ndim == 2 and column.shape[1] != 1):
                raise Refusal(422, f"input {name!r}: expected shape [n] or [n, 1], got {list(column.shape)}")
            columns[name] = column.reshape(-1).astype(np.float64)
            if column.size > settings.rows:
                raise Refusal(413, f"expected at most {settings.rows:,} rows in a request, got {column.size:,}")
        values = columns_of(columns, taste.statistics)
    if not len(values):
        raise Refusal(422, "expected at least one sample, got none")
    return Samples(values=values)


def _wanted(document: Mapping[str, object], known: Sequence[str]) -> dict[str, bool]:
    """The outputs asked for, all if none are named, and which of them as binary."""
    default = _flag(document, "binary_data_output")
    outputs = document.get("outputs")
    if outputs is None or outputs == []:
        return dict.fromkeys(known, default)
    if not isinstance(outputs, list):
        raise Refusal(400, "expected outputs, a list of tensors with a name")
    wanted: dict[str, bool] = {}
    for each in outputs:
        name = each.get("name") if isinstance(each, dict) else None
        if not isinstance(name, str) or name not in known:
            raise Refusal(422, f"expected outputs among {listing(known)}, got {name!r:.60}")
        parameters = each.get("parameters") or {}
        wanted[name] = _flag(each, "binary_data") if "binary_data" in parameters else default
    return wanted


def _flag(owner: Mapping[str, object], name: str) -> bool:
    parameters = owner.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refusal(400, "expected parameters to be an object")
    return parameters.get(name) is True


def render(query: Query, verdicts: Verdicts, name: str, taste: Taste) -> tuple[bytes, dict[str, str]]:
    """The body of an answer and its headers; in JSON, null stands for what is not finite."""
    outputs: list[dict[str, object]] = []
    tail: list[bytes] = []
    for output, binary in query.outputs.items():
        array = _output(output, verdicts, taste)
        tensor: dict[str, object] = {
            "name": output,
            "datatype": "BOOL" if array.dtype.kind == "b" else "FP64",
            "shape": [len(array)],
        }
        if binary:
            raw = np.ascontiguousarray(array, "|b1" if array.dtype.kind == "b" else "<f8").tobytes()
            tensor["parameters"] = {"binary_data_size": len(raw)}
            tail.append(raw)
        else:
            tensor["data"] = plain(array)
        outputs.append(tensor)
    answer: dict[str, object] = {"model_name": name, "model_version": "1", "outputs": outputs}
    if query.id is not None:
        answer["id"] = query.id
    head = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
    if not tail:
        return head, {"Content-Type": "application/json"}
    return b"".join([head, *tail]), {"Content-Type": "application/octet-stream", LENGTH: str(len(head))}


def _output(output: str, verdicts: Verdicts, taste: Taste) -> NDArray[np.generic]:
    group, _, name = output.partition("/")
    if not name:
        found: NDArray[np.generic] = getattr(verdicts.scores, output)
        return found
    table = verdicts.values if group == "statistics" else verdicts.contributions
    return table[:, taste.statistics.index(name)]


def plain(array: NDArray[np.generic]) -> list[object]:
    """Values for JSON: None for what is not a finite number."""
    values: list[object] = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array.astype(np.float64, copy=False)).all():
        return [value if isinstance(value, float) and math.isfinite(value) else None for value in values]
    return values
