"""Densities of states: estimators over the columns of a table of statistics."""
