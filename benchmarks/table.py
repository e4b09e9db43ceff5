"""Races of everything right of the table against what one would use instead, in one run, as ratios.

    python benchmarks/table.py --output results/table.json            # all of it: about 15 minutes on 2 cores
    python benchmarks/table.py --only kde --only svm --output …       # some of it; the rest of the file stays

Each figure is a median of repeated runs where they are short; contestants take turns in one process.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from KDEpy import FFTKDE
from numpy.typing import NDArray
from pyod.models.kde import KDE
from pyod.models.ocsvm import OCSVM
from rich.console import Console
from scipy.stats import gaussian_kde, spearmanr
from sklearn.decomposition import PCA
from sklearn.neighbors import KernelDensity
from sklearn.svm import OneClassSVM

from common import rows_like_statistics, show
from dose_ood import ProductKDE, Statistics, WhitenedSVM
from dose_ood.density.bandwidth import scott
from dose_ood.density.logkde import log_kde
from dose_ood.noise import generator

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Row = dict[str, str | float | None]

ROWS, COLUMNS = 54_000, 5


def seconds(action: Callable[..., object], *arguments: object, repeat: int = 1) -> float:
    """Median time of a call."""
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        action(*arguments)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def kde() -> list[Row]:
    """Scoring one column of 54,000 rows, per query, and the worst error in bulk, gap and tail; and fitting."""
    train = rows_like_statistics(ROWS)
    x = np.append(train[:, 3], train[:, 3].max() + 40 * train[:, 3].std())  # a datum far off, hence a gap
    h = scott(x)
    random = generator("benchmark queries")
    bulk = random.choice(x, 1_000_000) + h * random.normal(size=1_000_000)
    hard = np.concatenate([bulk[:300], np.linspace(x.min() - 60 * h, x.max() + 60 * h, 700)])
    exact = log_kde(np.sort(x) / h, hard / h) - np.log(h)
    few = bulk[:300]
    ours = ProductKDE().fit(x[:, None])
    theirs = gaussian_kde(x)
    sk = KernelDensity(bandwidth=h).fit(x[:, None])
    pyod = KDE(bandwidth=h)
    fft_x, fft_y = FFTKDE(bw=h).fit(x).evaluate(2**14)

    def fft(q: Vector) -> Vector:
        with np.errstate(divide="ignore"):
            result: Vector = np.log(np.interp(q, fft_x, fft_y, left=0, right=0))
        return result

    contestants: dict[str, tuple[Callable[[Vector], Vector], Vector]] = {
        "dose-ood ProductKDE (table)": (lambda q: ours.score_samples(q[:, None]), bulk),
        "SciPy gaussian_kde.logpdf": (theirs.logpdf, few),
        "scikit-learn KernelDensity": (lambda q: sk.score_samples(q[:, None]), few),
        "KDEpy FFTKDE, log of the interpolated density": (fft, bulk),
    }
    result: list[Row] = []
    for name, (score, queries) in contestants.items():
        time_each = seconds(score, queries, repeat=3) / len(queries)
        worst = float(np.abs(score(hard) - exact).max())
        error = worst if np.isfinite(worst) else "infinite"
        result.append({"what": "KDE scoring", "who": name, "µs each": 1e6 * time_each, "worst error": error})
    small = x[-5_000:]
    pyod.fit(small[:, None])
    error = float(
        np.abs(-pyod.decision_function(hard[:, None]) - log_kde(np.sort(small) / h, hard / h) + np.log(h)).max()
    )
    each = seconds(pyod.decision_function, few[:, None]) / len(few)
    name = "PyOD KDE (5,000 rows only: it scores all training rows at fit)"
    result.append({"what": "KDE scoring", "who": name, "µs each": 1e6 * each, "worst error": error})

    fit = seconds(ProductKDE().fit, train, repeat=5)
    estimates = [gaussian_kde(train[:, c]) for c in range(COLUMNS)]
    scoring = seconds(lambda: [estimates[c].logpdf(train[:1000, c]) for c in range(COLUMNS)]) * 10
    result.append({"what": "KDE fit, 54,000 × 5", "who": "dose-ood ProductKDE", "s": fit})
    result.append(
        {"what": "KDE fit, 54,000 × 5", "who": "SciPy scoring 10,000 × 5 (10 × the time of 1,000)", "s": scoring}
    )
    return result


def svm() -> list[Row]:
    """Fitting 54,000 × 5 and scoring 100,000 rows at ν = 0.5, and how well the rankings agree."""
    train, new = rows_like_statistics(ROWS), rows_like_statistics(100_000, seed=1)
    result: list[Row] = []
    for nu in (0.5, 0.05):
        ours = WhitenedSVM(nu=nu, solver="landmark")
        fit = seconds(ours.fit, train, repeat=3)
        score = seconds(ours.score_samples, new, repeat=3) / len(new)
        whitened = PCA(whiten=True).fit(train)
        z, z_new = whitened.transform(train), whitened.transform(new)
        theirs = OneClassSVM(nu=nu)
        their_fit = seconds(theirs.fit, z)
        some = z_new[:3000]
        their_score = seconds(theirs.score_samples, some) / len(some)
        agreement = float(spearmanr(theirs.score_samples(some), ours.score_samples(new[:3000])).statistic)
        what = f"SVM, 54,000 × 5, ν = {nu}"
        result.append(
            {
                "what": what,
                "who": "dose-ood WhitenedSVM (landmark)",
                "s": fit,
                "µs each": 1e6 * score,
                "Spearman": agreement,
                "duality gap": ours.duality_gap_,
            }
        )
        result.append({"what": what, "who": "scikit-learn OneClassSVM", "s": their_fit, "µs each": 1e6 * their_score})
        if nu == 0.5:
            pyod = OCSVM(nu=nu)
            pyod_fit = seconds(pyod.fit, z[:10_000])
            pyod_score = seconds(pyod.decision_function, some) / len(some)
            result.append(
                {
                    "what": what,
                    "who": "PyOD OCSVM (10,000 rows only; libsvm as well)",
                    "s": pyod_fit,
                    "µs each": 1e6 * pyod_score,
                }
            )
    return result


def scale() -> list[Row]:
    """Fitting 1e5, 3e5 and 1e6 rows of 5 columns: time, and peak memory of a process that does only that."""
    result: list[Row] = []
    for kind in ("ProductKDE", "WhitenedSVM"):
        for rows in (100_000, 300_000, 1_000_000):
            script = (
                "import sys, time; sys.path.insert(0, 'benchmarks')\n"
                "from dose_ood import ProductKDE, WhitenedSVM; from common import rows_like_statistics\n"
                f"X = rows_like_statistics({rows}); begin, busy = time.perf_counter(), time.process_time()\n"
                f"{kind}().fit(X); print(time.perf_counter() - begin, time.process_time() - busy)\n"
                "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) / 2**20)"
            )
            took, busy, peak = output_numbers([sys.executable, "-c", script])
            what = f"fit, {rows:,} × 5"
            result.append({"what": what, "who": f"dose-ood {kind}", "s": took, "CPU s": busy, "GiB": peak})
    return result


def output_numbers(command: list[str], cwd: str | None = None) -> list[float]:
    """The numbers that a command prints."""
    done = subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True)
    return [float(word) for word in done.stdout.split()]


def stream(largest: int) -> list[Row]:
    """`dose score` on Parquet files of growing length: time, and peak memory of the command."""
    result: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rows, seed in (("train", ROWS, 0), ("held_out", 6_000, 1)):
            names = tuple("abcde")
            Statistics(names, rows_like_statistics(rows, seed)).write(f"{folder}/{name}.parquet")
        dose = [sys.executable, "-m", "dose_ood"]
        subprocess.run(
            [*dose, "fit", "train.parquet", "--held-out", "held_out.parquet", "-o", "detector"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        block = pa.table(dict(zip(names, rows_like_statistics(1_000_000, 2).T, strict=True)))
        for rows in (10**6, 10**7, 10**8):
            if rows > largest:
                break
            path = Path(folder, "new.parquet")
            with pq.ParquetWriter(path, block.schema, use_dictionary=False, compression="none") as writer:
                for _ in range(rows // 10**6):
                    writer.write_table(block, row_group_size=131_072)
            script = (
                "import resource, subprocess, sys, time; begin = time.perf_counter()\n"
                "subprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
                "print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20)"
            )
            command = [sys.executable, "-c", script, *dose, "score", "detector", "new.parquet", "-o", "scores.parquet"]
            took, peak = output_numbers(command, folder)
            result.append(
                {"what": f"dose score, {rows:,} rows × 5, Parquet", "who": "dose-ood", "s": took, "GiB": peak}
            )
            path.unlink()
    return result


def ratios(results: dict[str, list[Row]]) -> list[Row]:
    """Every other contestant's time over ours, of the same run."""
    found: list[Row] = []
    for rows in results.values():
        for row in (r for r in rows if not str(r["who"]).startswith("dose-ood")):
            ours = next(r for r in rows if r["what"] == row["what"])
            for unit in ("s", "µs each"):
                mine, its = ours.get(unit), row.get(unit)
                if isinstance(mine, float) and isinstance(its, float):
                    found.append({"what": row["what"], "against": row["who"], "unit": unit, "ratio": its / mine})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=["kde", "svm", "scale", "stream"])
    parser.add_argument("--largest", type=int, default=10**8, help="rows of the largest file to score")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    console = Console(width=150)
    races: dict[str, Callable[[], list[Row]]] = {
        "kde": kde,
        "svm": svm,
        "scale": scale,
        "stream": lambda: stream(options.largest),
    }
    earlier = json.loads(options.output.read_text())["races"] if options.output.exists() else {}
    for name in options.only or races:
        earlier[name] = races[name]()
        show(console, name, earlier[name])
        found = ratios(earlier)
        document = {
            "command": "python benchmarks/table.py --output results/table.json",
            "machine": f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}",
            "races": earlier,
            "ratios": found,
        }
        options.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    show(console, "their time over ours", found)


if __name__ == "__main__":
    main()
