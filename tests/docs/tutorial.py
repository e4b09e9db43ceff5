"""Runs the commands of a page, in order, as a reader would.

    python tests/docs/tutorial.py docs/tutorials/table.md     # writes into the page what its commands print

All `sh` blocks of a page go to one shell and all `python` blocks to one interpreter, in one folder. A `text` block
after a command shows what it printed. Marks in a fence, as in ```{ .sh .not-run }:

- `not-run`: needs what a test has not, such as a cluster or hours;
- `needs-ray`: run among the slow tests, where ray is installed;
- `slow`: run among the slow tests.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from threading import Timer
from typing import Self

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", flags=re.DOTALL | re.MULTILINE)
MARKS = {"needs-ray", "not-run", "slow"}
END = "---- end of block ----"
PATIENCE = 300.0  # seconds that a block may take


@dataclass(frozen=True)
class Block:
    """A fenced block; `output` is the span and the text of the block that shows what it prints."""

    language: str
    marks: frozenset[str]
    code: str
    output: tuple[tuple[int, int], str] | None

    @property
    def is_command(self) -> bool:
        """Whether it is code that a reader would run."""
        return self.language in ("sh", "python")

    @property
    def runs(self) -> bool:
        """Whether it can be run here."""
        has_ray = "needs-ray" not in self.marks or find_spec("ray") is not None
        return self.is_command and has_ray and "not-run" not in self.marks

    @property
    def is_quick(self) -> bool:
        """Whether it runs among the default tests."""
        return self.is_command and not self.marks


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = list(FENCE.finditer(page))
    words = [re.findall(r"[\w-]+", fence["info"]) for fence in found]
    result = []
    for index, fence in enumerate(found):
        language, *marks = words[index] or [""]
        if unknown := set(marks) - MARKS:
            raise ValueError(f"unknown marks {unknown} in {fence['info']!r}")
        after = found[index + 1] if words[index + 1 : index + 2] == [["text"]] and language != "text" else None
        output = (after.span("code"), after["code"]) if after else None
        result.append(Block(language, frozenset(marks), fence["code"], output))
    return result


class Reader:
    """Somebody who types what a page says: one shell, one interpreter, one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])  # 8000 may be taken on a machine that runs tests
        self.namespace: dict[str, object] = {"__name__": "tutorial"}
        bin_folder = Path(sys.executable).parent
        environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "100"}
        environment.pop("DOSE_DATA", None)
        environment["XDG_CACHE_HOME"] = str(folder / "cache")
        self.shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail"],
            cwd=folder,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell and what it left running."""
        with suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGTERM)
        self.shell.communicate()

    def run(self, block: Block) -> str:
        """What a block prints; an error if it fails."""
        code = block.code.replace("8000", self.port)
        found = self._python(code) if block.language == "python" else self._sh(code)
        found = found.replace(self.port, "8000")
        return "\n".join(line.rstrip() for line in found.strip("\n").splitlines()) + "\n"

    def _python(self, code: str) -> str:
        with chdir(self.folder), redirect_stdout(StringIO()) as printed:
            exec(compile(code, "tutorial", "exec"), self.namespace)  # noqa: S102  # our own page
        return printed.getvalue()

    def _sh(self, code: str) -> str:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        self.shell.stdin.write(f"{code}\necho; echo '{END}'\n")
        self.shell.stdin.flush()
        lines = []
        patience = Timer(PATIENCE, os.killpg, (self.shell.pid, signal.SIGKILL))
        patience.start()
        try:
            for line in self.shell.stdout:
                if line.strip() == END:
                    return "".join(lines)
                lines.append(line)
        finally:
            patience.cancel()
        raise AssertionError(f"exit code {self.shell.wait()} of\n{code}\n{''.join(lines)}")


def shape(printed: str) -> list[str]:
    """Words without numbers, bars and spaces: what a machine that rounds otherwise prints as well."""
    plain = re.sub(r"[-+−]?[\d.,]*\d(e[-+]?\d+)?", "#", printed)
    return re.findall(r"[^\W_]+|#", re.sub(r"[^\w\s#/.=()%]", " ", plain))


def main() -> None:
    """Write into each page what its commands print."""
    for path in map(Path, sys.argv[1:]):
        page = path.read_text(encoding="utf-8")
        changes = []
        with tempfile.TemporaryDirectory() as folder, Reader(Path(folder)) as reader:
            for block in blocks(page):
                if block.runs:
                    printed = reader.run(block)
                    if block.output is not None:
                        changes.append((block.output[0], printed))
        for (start, end), printed in reversed(changes):
            page = page[:start] + printed + page[end:]
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
