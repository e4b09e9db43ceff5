"""Parts of a batch worked on at once, each by a thread of its own.

Threads that share every operation wait for each other after each of them. On small images that takes as long as the
operation, and on a machine that others use as well it takes far longer. Threads that have work of their own meet once.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

MOST = 4  # threads: Python itself runs one at a time
T = TypeVar("T")


def workers(images: int, least: int) -> int:
    """How many threads may share so many images, each having `least` of them or more."""
    return max(1, min(torch.get_num_threads(), MOST, images // least))


def at_once(tasks: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """The results of tasks, in their order, done by so many threads; gradients are not recorded in them."""
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    inference = torch.is_inference_mode_enabled()

    def run(task: Callable[[], T]) -> T:
        with torch.inference_mode(inference), torch.no_grad():
            return task()

    return [*_threads(threads, max(1, torch.get_num_threads() // threads)).map(run, tasks)]


@cache
def _threads(count: int, within: int) -> ThreadPoolExecutor:
    """Threads that stay, each of which shares an operation among `within` threads."""
    ready, setting = Barrier(count), torch.get_num_threads()

    def start(_: int) -> None:
        torch.get_num_threads()  # sets the number of this thread to that of all, which it would do later otherwise
        torch.set_num_threads(within)  # of this thread, and of those that start later
        ready.wait()

    pool = ThreadPoolExecutor(count, "dose-ood")
    try:
        deque(pool.map(start, range(count)), maxlen=0)
    finally:
        torch.set_num_threads(setting)
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a child process has none of them
