"""DoSE, the density of states estimator: how typical is a sample, given the statistics of the training data?"""

__version__ = "0.1.0"

from dose_ood.density.baselines import WAIC, Likelihood, LikelihoodRatio, Typicality
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.detector import Detector, Scores
from dose_ood.errors import DoseWarning, InputError
from dose_ood.statistics import Statistics

__all__ = [
    "WAIC",
    "Detector",
    "DoseWarning",
    "InputError",
    "Likelihood",
    "LikelihoodRatio",
    "ProductKDE",
    "Scores",
    "Statistics",
    "Typicality",
    "WhitenedSVM",
]
