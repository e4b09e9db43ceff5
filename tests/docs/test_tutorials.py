"""Every command of every tutorial runs, in order, and prints what the page says, up to numbers."""

from pathlib import Path

import pytest
from tutorial import Reader, blocks, shape

DOCS = Path(__file__).parents[2] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PAGES = [*TUTORIALS, DOCS / "limits.md"]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks_of(page):
    return [block for block in blocks(page.read_text(encoding="utf-8")) if block.is_command]


SLOW = [page for page in PAGES if any(block.runs and not block.is_quick for block in blocks_of(page))]


def follow(commands, folder):
    with Reader(folder) as reader:
        for command in commands:
            printed = reader.run(command)
            if command.output is not None:
                assert shape(printed) == shape(command.output[1]), printed


def test_there_is_a_tutorial_for_each_user():
    assert {page.stem for page in TUTORIALS} == {"billion-rows", "paper-table", "service", "table", "torch-model"}


@each_page
def test_commands(page, tmp_path):
    quick = [block for block in blocks_of(page) if block.is_quick]
    assert len(quick) >= 3
    follow(quick, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray's own
@pytest.mark.parametrize("page", SLOW, ids=lambda page: page.stem)
def test_slow_commands(page, tmp_path):
    follow([block for block in blocks_of(page) if block.runs], tmp_path)


@each_page
def test_few_commands_are_never_run(page):
    assert sum("not-run" in block.marks for block in blocks_of(page)) <= 1


@pytest.mark.parametrize("block", ["```sh\nfalse\n```\n", "```python\nraise SystemError\n```\n"], ids=["sh", "python"])
def test_a_failure_is_seen(block, tmp_path):
    with Reader(tmp_path) as reader, pytest.raises((AssertionError, SystemError)):
        reader.run(blocks(block)[0])


def test_numbers_may_differ_and_words_may_not():
    assert shape("58 atypical (5.8%), p = 9.9e-05") == shape("1,058 atypical (-12%), p = 0.04")
    assert shape("58 atypical") != shape("58 typical")
