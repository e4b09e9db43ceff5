"""Every public name stands in the reference, and every page of it names what exists."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import dose_ood

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
LISTED = [name for page in PAGES for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)]


@pytest.mark.parametrize("name", dose_ood.__all__)
def test_public_names_are_listed(name):
    assert f"dose_ood.{name}" in LISTED


def test_nothing_is_listed_twice():
    assert len(LISTED) == len(set(LISTED))


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_exists_and_is_documented(name):
    try:
        found = import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        found = getattr(import_module(module), attribute)
    assert found.__doc__
