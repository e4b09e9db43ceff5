from functools import reduce

import numpy as np
import pytest

from dose_ood import InputError
from dose_ood.engines.sketch import Sketch, row_keys
from dose_ood.noise import generator


def rows_like_data(count=3000, seed=0):
    random = generator("sketch", seed)
    return random.normal(size=(count, 3)) * [1.0, 1e-6, 1e6] + [0.0, 5.0, -1e8]


def divided(X, size, cuts, seed):
    """The sketch of rows in another order, cut into parts and merged in another order."""
    random = generator("division", seed)
    parts = np.split(X[random.permutation(len(X))], np.sort(random.choice(np.arange(1, len(X)), cuts, replace=False)))
    return reduce(Sketch.merge, (Sketch.of(part, size) for part in parts))


@pytest.mark.parametrize("size", [2, 100, 2999, 3000, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_the_sample_does_not_depend_on_how_rows_are_divided(size, seed):
    X = rows_like_data()
    X[1000:1400] = X[7]  # copies of one row, spread over the parts
    X[2000:2600] = X[2600:3000].repeat(2, axis=0)[:600]
    whole, parts = Sketch.of(X, size), divided(X, size, cuts=11, seed=seed)
    np.testing.assert_array_equal(parts.keys, whole.keys)
    np.testing.assert_array_equal(parts.rows, whole.rows)
    np.testing.assert_array_equal(parts.counts, whole.counts)
    np.testing.assert_array_equal(parts.sample(), whole.sample())
    assert len(whole.sample()) == min(size, len(X)) or len(whole.sample()) < len(X)
    for row, count in zip(whole.rows, whole.counts, strict=True):
        assert (row == X).all(axis=1).sum() == count


def test_moments_are_those_of_all_rows():
    X = rows_like_data()
    parts = divided(X, 50, cuts=20, seed=1)
    assert parts.count == 3000
    np.testing.assert_allclose(parts.mean, X.mean(axis=0), rtol=1e-14, atol=1e-14)
    deviations = np.sqrt(np.diag(parts.covariance))
    np.testing.assert_allclose(deviations, X.std(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(parts.covariance, np.cov(X.T), atol=1e-9 * np.outer(deviations, deviations).max())


def test_a_sample_that_holds_all_rows_is_all_rows():
    X = rows_like_data(500)
    X[100:150] = X[3]
    found = divided(X, 500, cuts=5, seed=0)
    assert found.is_whole
    np.testing.assert_array_equal(found.sample()[np.lexsort(found.sample().T)], X[np.lexsort(X.T)])
    assert not divided(X, 400, cuts=5, seed=0).is_whole


def test_copies_are_sampled_in_proportion():
    values = np.repeat(np.arange(4.0), [100, 200, 300, 400])[:, None]
    found = Sketch.of(values, 100).sample()[:, 0]
    counts = np.bincount(found.astype(int))
    assert len(found) == 100
    assert np.abs(counts - [10, 20, 30, 40]).max() <= 1


def test_the_sample_is_uniform():
    """The empirical distribution of a sample of k is within 1.95/√k of that of the rows: Kolmogorov, p = 0.001."""
    X = np.sort(generator("uniform rows").normal(size=(50_000, 1)), axis=0)
    found = Sketch.of(X, 4000).sample()[:, 0]
    ranks = np.sort(np.searchsorted(X[:, 0], found)) / len(X)
    assert np.abs(ranks - np.arange(4000) / 4000).max() < 1.95 / np.sqrt(4000)
    assert len(set(found)) == 4000


def test_keys_differ_where_rows_differ():
    X = np.arange(300_000.0).reshape(-1, 3)
    assert len(np.unique(row_keys(X))) == 100_000
    bits = np.unpackbits(row_keys(X).view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(100_000)
    assert (row_keys(X[:, ::-1]) != row_keys(X)).all()


def test_bytes():
    sketch = Sketch.of(rows_like_data(100), 30)
    again = Sketch.from_bytes(sketch.to_bytes())
    for name, value in vars(sketch).items():
        np.testing.assert_array_equal(getattr(again, name), value)
    assert again.merge(sketch).count == 200


def test_sketches_that_do_not_belong_together():
    one = Sketch.of(rows_like_data(10), 5)
    with pytest.raises(InputError, match="expected sketches of 5 rows and 3 columns, got 6 and 3"):
        one.merge(Sketch.of(rows_like_data(10), 6))
    with pytest.raises(InputError, match="at least 2, got 1"):
        Sketch.of(rows_like_data(10), 1)
