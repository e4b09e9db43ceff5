"""Fixtures that several files use."""

import sys

import pytest

from dose_ood import cli


@pytest.fixture
def one_thread():
    """Small tensors are slower on two."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def folder(tmp_path):
    """Where `dose` runs; files with a folder of their own have one of this name."""
    return tmp_path


@pytest.fixture
def dose(folder, monkeypatch, capsys):
    """Run a command in the folder: (exit code, standard output, standard error)."""

    def run(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dose", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0, *capsys.readouterr()

    return run
