"""Decisions from typicality scores: pure functions of arrays of scores, higher = more typical."""
