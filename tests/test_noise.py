import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from dose_ood.errors import InputError
from dose_ood.noise import content_keys, content_normal, content_uniform, generator

IMAGES = generator("images").integers(0, 256, size=(500, 3, 8, 8), dtype=np.uint8)
FEW = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)


KEYS = [[9749663275345039075, 12799326380632877052], [14450094513979757860, 5232307287847607364]]
UNIFORM = [[0.03423581924814656, 0.022605106273311915], [0.21734273795160786, 0.09687002945971168]]
UNIFORM_1 = [[0.6664562477929283, 0.6639837846309268], [0.6511996473417223, 0.7745487901528421]]
NORMAL = [
    [[0.9567185181396836, -0.3157307016639536], [1.021723859182419, -3.122474545235591]],
    [[-0.18298072453238334, 0.061902612808669], [-0.10664444759133251, -0.17865312103788317]],
]


def test_what_is_drawn_never_changes():
    assert content_keys(FEW).tolist() == KEYS
    assert content_uniform(FEW, (2,)).tolist() == UNIFORM
    assert content_uniform(FEW, (2,), draw=1).tolist() == UNIFORM_1
    np.testing.assert_allclose(content_normal(FEW, 2, (2,)), NORMAL, rtol=1e-14)


@pytest.mark.parametrize("draw", [lambda x: content_normal(x, 5, (2,)), lambda x: content_uniform(x, (7, 3))])
def test_a_sample_draws_the_same_alone_and_in_any_batch_and_order(draw):
    everyone = draw(IMAGES)
    order = generator("order").permutation(len(IMAGES))
    np.testing.assert_array_equal(draw(IMAGES[order]), everyone[order])
    np.testing.assert_array_equal(draw(IMAGES[::-7]), everyone[::-7])
    np.testing.assert_array_equal(np.concatenate([draw(IMAGES[i : i + 1]) for i in range(20)]), everyone[:20])
    np.testing.assert_array_equal(draw(np.asfortranarray(IMAGES)), everyone)
    np.testing.assert_array_equal(draw(IMAGES.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)), everyone)


def test_another_process_draws_the_same():
    code = (
        "import numpy as np; from dose_ood.noise import content_normal;"
        "print(*map(float.hex, content_normal(np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), 16, (2,)).ravel()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert [float.fromhex(word) for word in run.stdout.split()] == content_normal(FEW, 16, (2,)).ravel().tolist()


def test_more_draws_keep_the_first_ones():
    np.testing.assert_array_equal(content_normal(IMAGES, 16, (2,))[:, :5], content_normal(IMAGES, 5, (2,)))


def test_nothing_global_is_read_or_changed():
    before = np.random.get_state(legacy=True)  # noqa: NPY002
    first = content_normal(FEW, 2, (2,))
    np.random.seed(5)  # noqa: NPY002
    np.testing.assert_array_equal(content_normal(FEW, 2, (2,)), first)
    np.random.set_state(before)  # noqa: NPY002
    content_uniform(FEW, (3,))
    assert np.array_equal(np.random.get_state(legacy=True)[1], before[1])  # noqa: NPY002


def test_content_and_shape_make_the_key():
    assert len(np.unique(content_keys(IMAGES), axis=0)) == len(IMAGES)
    changed = IMAGES.copy()
    changed[:, 2, 7, 7] ^= 1
    assert not (content_keys(changed) == content_keys(IMAGES)).any()
    assert not (content_keys(IMAGES.reshape(500, 8, 3, 8)) == content_keys(IMAGES)).any()
    assert not (content_keys(IMAGES.reshape(500, 192)) == content_keys(IMAGES)).any()


def test_normal_draws_are_normal_and_independent():
    draws = content_normal(IMAGES, 200, (2,))
    assert stats.kstest(draws.ravel(), stats.norm.cdf).pvalue > 0.01
    assert stats.kstest(draws[:, 0].ravel(), stats.norm.cdf).pvalue > 0.01
    assert abs(draws).max() > 4  # 200,000 draws reach the tails
    _no_correlation(draws.reshape(len(draws), -1)[:, :40])  # between draws
    _no_correlation(draws.reshape(len(draws), -1)[:40].T)  # between samples
    _no_correlation(draws.reshape(len(draws), -1)[:, :40] ** 2)


def test_uniform_draws_are_uniform_and_independent_of_each_other_and_of_the_normal_ones():
    first, second = content_uniform(IMAGES, (400,)), content_uniform(IMAGES, (400,), draw=1)
    assert first.min() >= 0
    assert first.max() < 1
    for draws in (first, second):
        assert stats.kstest(draws.ravel(), stats.uniform.cdf).pvalue > 0.01
    normal = content_normal(IMAGES, 10, (1,))[..., 0]
    _no_correlation(np.concatenate([first[:, :15], second[:, :15], stats.norm.cdf(normal)], axis=1))


def _no_correlation(columns):
    found = np.corrcoef(columns, rowvar=False)
    found = found[np.triu_indices(len(found), 1)] * np.sqrt(len(columns))
    assert abs(found).max() < 5
    assert abs(found.std() - 1) < 0.1


def test_similar_images_draw_as_differently_as_others():
    images = np.zeros((300, 1, 28, 28), np.uint8)
    images.reshape(300, 784)[np.arange(300), np.arange(300)] = 1
    draws = content_normal(images, 16, (2,)).reshape(300, 32)
    assert stats.kstest(draws.ravel(), stats.norm.cdf).pvalue > 0.01
    _no_correlation(draws.T[:, :40])


def test_no_samples_and_what_is_not_a_sample():
    assert content_normal(IMAGES[:0], 3, (2,)).shape == (0, 3, 2)
    assert content_uniform(IMAGES[:0], (4, 4)).shape == (0, 4, 4)
    for images in (IMAGES.astype(np.int64), IMAGES[0, 0, 0], IMAGES[:, :0]):
        with pytest.raises(InputError, match="expected uint8 samples"):
            content_keys(images)
