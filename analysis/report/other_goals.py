"""Reports on goals other than the studies' own: each in a folder of its own, linked with the main report."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.counting import Goal
from analysis.figures.atomic import write_atomically
from analysis.labels import goal_text, listed

FOLDER = "goals"
"""Folder of these reports, in the folder of the main report."""
LONGEST = 120
"""Characters of a folder's name; a hash replaces the rest of a longer one."""
BEGIN, END = "<!-- other goals -->", "<!-- end of other goals -->"
"""Marks around the links on a main report's page."""


class Link(NamedTuple):
    """A link from one report to another; `note` follows it."""

    target: str
    text: str
    note: str = ""


def folder(main: Path, goals: Sequence[Goal]) -> Path:
    """The folder of the report on these goals, below the folder of the main report.

    >>> str(folder(Path("results/digits"), [Goal("val/classification_error", 0.1)]))
    'results/digits/goals/val_classification_error_below_0.1'
    """
    each = [str(goal).replace("/", "_").replace(" < ", "_below_") for goal in goals]
    name = "_and_".join(sorted(set(each)))
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return main / FOLDER / name


def main_folder(output: Path, goals: Sequence[Goal]) -> Path | None:
    """The folder of the main report if `output` is the `folder` of these goals below it, else None.

    >>> goals = [Goal("val/loss", 1.0)]
    >>> str(main_folder(folder(Path("results/digits"), goals), goals)), main_folder(Path("elsewhere"), goals)
    ('results/digits', None)
    """
    main = output.parent.parent
    return main if goals and output == folder(main, goals) else None


BACK = Link("../../report.html", "the report on the studies' own goals")
"""From a report on other goals to the main report."""


def links(main: Path) -> list[Link]:
    """The links from a main report to each report on other goals.

    >>> links(Path(published))
    []
    """
    found = []
    for path in sorted(main.glob(f"{FOLDER}/*/report.html")):
        steps = path.parent / "tables/steps_to_result.csv"
        if not steps.exists():
            continue
        pairs = pd.read_csv(steps, usecols=["goal_metric", "goal_threshold"]).drop_duplicates()
        goals = [goal_text(str(metric), float(threshold)) for metric, threshold in pairs.itertuples(index=False)]
        found.append(Link(f"{FOLDER}/{path.parent.name}/report.html", listed(goals), _age(main, path.parent)))
    return found


def _age(main: Path, other: Path) -> str:
    """A note if the main report has read measurements that the other has not; cost.csv depends on no goal."""
    one, two = (folder / "tables/cost.csv" for folder in (main, other))
    same = not one.exists() or not two.exists() or one.read_bytes() == two.read_bytes()
    return "" if same else " (older: written before the latest measurements)"


def relink(page: Path, section: str) -> bool:
    """Replace the links on a main report's page, and nothing else; False if the page has no place for them.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     page = Path(name) / "report.html"
    ...     _ = page.write_text(f"<header>{BEGIN}{END}</header>")
    ...     print(relink(page, "other"), relink(Path(name) / "none.html", "other"), "other" in page.read_text())
    True False True
    """
    text = page.read_text() if page.exists() else ""
    if BEGIN not in text or END not in text:
        return False
    changed = re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{section}{END}", text, count=1, flags=re.DOTALL)
    if changed != text:
        write_atomically(page, changed.encode())
    return True
