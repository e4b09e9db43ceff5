"""Models that describe each sample by named statistics (PyTorch)."""

import os

# Large tensors on huge pages, where the system leaves that to programs: a Glow of 400 filters trains a twelfth faster.
# torch reads this once, with the first tensor of a program.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
