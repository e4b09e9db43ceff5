"""DoSE, the density of states estimator: how typical is a sample, given the statistics of the training data?"""

__version__ = "0.1.0"
