"""The README and the pages of the docs: their commands, their code, and the output that they show.

python tests/house/doc_pages.py     runs every `console` example and writes its output into the page
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_CONSOLE = re.compile(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:(?!```).*\n)*)```")


def commands() -> dict[str, Path]:
    """Every command of this package that a page prints, without its environment -> the page."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        written = re.findall(r"`((?:python -m )?study [^`\n]+)`", text)
        written += re.findall(r"^(?:    |\$ )?(?:\S*/bin/)?(python -m study .+)$", text, re.MULTILINE)
        for each in written:
            arguments = re.split(" {2,}", each.removeprefix("python -m ").removeprefix("study "))[0]
            if re.match(r"[a-z]+ \S", arguments) and not re.search(r"\b(COMMAND|RESULTS|DIR)\b", arguments):
                found.setdefault(arguments, page)
    return found


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def named_blocks(page: str) -> dict[str, str]:
    """The files that a page says to create in the folder `mine`: name -> content."""
    pattern = r"`mine/([\w/.]+)`:\n\n```\w+\n(.*?)^```"
    return dict(re.findall(pattern, (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


def console_examples() -> list[tuple[Path, str, str]]:
    """(page, command, output shown) of every `console` block."""
    return [(page, m["command"], m["output"]) for page in PAGES for m in _CONSOLE.finditer(page.read_text())]


def output(command: str) -> str:
    """What a command prints on a terminal of 80 columns, without spaces at the ends of lines."""
    arguments = shlex.split(command)
    assert arguments[:3] == ["python", "-m", "study"], command
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run([sys.executable, *arguments[1:]], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip("\n").splitlines())


def write_outputs() -> None:
    """Bring the output in every page up to date."""
    for page in PAGES:
        text = page.read_text()
        new = _CONSOLE.sub(lambda m: f"```console\n$ {m['command']}\n{output(m['command'])}```", text)
        if new != text:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)} changed")


if __name__ == "__main__":
    write_outputs()
