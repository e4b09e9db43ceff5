"""The README's code runs, its commands work, and its links lead somewhere."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dose_ood.benchmark.toys import gaussian

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_python_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    found = blocks("python")
    assert found
    for block in found:
        exec(compile(block, "README.md", "exec"), namespace)  # noqa: S102  # our own README


def test_commands(tmp_path):
    names = ("norm", "like", "first", "max")
    for name, rows, seed in (("train", 3000, 0), ("val", 500, 1), ("new", 100, 2)):
        gaussian(rows, seed=seed).select(names).write(tmp_path / f"{name}.parquet")
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(commands) >= 4
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "dose"
        subprocess.run([sys.executable, "-m", "dose_ood", *arguments], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (page.parent / link).exists(), link
