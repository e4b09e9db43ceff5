"""Models that describe each sample by named statistics (PyTorch)."""
