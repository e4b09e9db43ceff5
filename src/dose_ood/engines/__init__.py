"""Scoring and fitting where the data are too many for one process: the core, and thin adapters for existing engines.

`batch` scores Arrow batches, `pieces` cuts inputs into work, `parts` writes it so that it can be resumed, `sketch` and
`fit` fit from mergeable summaries. None of them needs more than the package itself; `ray_data` needs ray,
`spark` pyspark.
"""

from dose_ood.engines.batch import BatchScorer
from dose_ood.engines.engine import Engine, here
from dose_ood.engines.fit import fit_partitions
from dose_ood.engines.score import Totals, score_files

__all__ = ["BatchScorer", "Engine", "Totals", "fit_partitions", "here", "score_files"]
