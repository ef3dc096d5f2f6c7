"""The gallery as Markdown: an index, a page for each study, a leaderboard with performance profiles, the claims.

The text is in `templates/`; this file fills in the numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.claims.evidence import Evidence
from analysis.claims.registry import Judged
from analysis.claims.settle import Settles
from analysis.claims.statement import short
from analysis.gallery import standings
from analysis.gallery.studies import MOST_BYTES, Published
from analysis.labels import (
    BOUNDS,
    counted,
    duration,
    goal_text,
    interval_text,
    listed,
    number,
    optimizer_text,
    size_text,
)
from analysis.load import TASK, rows_with
from analysis.report.answer.finding import finding
from analysis.report.answer.rows import rows
from analysis.report.html_tables import DEFINITIONS
from analysis.report.templates import environment

MARK = "<!-- Written by docs/gallery.py; do not edit. -->"
FIGURES = {
    "steps_to_result": "Steps to the goal against batch size",
    "best_learning_rate": "Best learning rate against batch size",
}
"""Figure of a study's page -> its text."""
FACTORS = (1.0, 1.2, 1.5, 2.0, 4.0)
"""Where the table of performance profiles reads them."""
Cells = list[list[object]]


class Study(NamedTuple):
    """A published study with its own tables."""

    published: Published
    evidence: Evidence


def pages(
    studies: Sequence[Study], evidence: Evidence, judged: Sequence[Judged], settled: Mapping[str, Settles]
) -> dict[str, str]:
    """File name -> text of each page of the gallery.

    Arguments:
        evidence: of all studies together.
        settled: the letter of each open claim -> what would settle it.

    >>> from analysis.claims import registry
    >>> from analysis.gallery import gather, studies
    >>> mine = Study(studies.read(Path(published)), gather.one(published))
    >>> made = pages([mine], mine.evidence, registry.judge(mine.evidence), {})
    >>> sorted(made)
    ['claims.md', 'index.md', 'leaderboard.md', 'mlp_digits.md']
    """
    verdicts = [each.verdict for each in judged]
    said = listed([f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)])
    by_workload = sorted(studies, key=lambda study: (*sorted(study.evidence.about["workload"]), study.published.name))
    entries = [_entry(study) for study in by_workload]
    return {
        "index.md": _rendered("index", entries=entries, verdicts=said, most=round(MOST_BYTES / 1e6)),
        "claims.md": _claims(judged, settled),
        "leaderboard.md": _leaderboard(evidence),
        **{f"{study.published.name}.md": _study(study) for study in studies},
    }


def _table(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
    escaped = ([str(cell).replace("|", r"\|") for cell in row] for row in cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *escaped])


TEMPLATES = environment(Path(__file__).with_name("templates"), autoescape=False, table=_table)


def _rendered(name: str, **values: Any) -> str:
    """A template with these values; empty lines are single, and there is one end of line at the end."""
    text = TEMPLATES.get_template(f"{name}.md.jinja").render(mark=MARK, **values)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def _entry(study: Study) -> list[object]:
    about, steps = study.evidence.about, study.evidence.table("steps_to_result")
    sizes = f"{steps['batch_size'].min():,} to {steps['batch_size'].max():,}"
    names = [", ".join(dict.fromkeys(about[column])) for column in ("workload", "optimizer")]
    findings = "; ".join(answer["title"] for answer in _answers(study.evidence))
    return [names[0], f"[{study.published.name}]({study.published.name}.md)", names[1], sizes, findings]


def _answers(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """The answer of each workload and goal, as the first screen of a report has it."""
    for key, _ in evidence.table("steps_to_result").groupby(TASK, sort=True):
        steps, limits, pairs, trials = (
            rows_with(evidence.table(name), TASK, key) for name in ("steps_to_result", "scaling", "compare", "trials")
        )
        title, lead = finding(steps, limits, pairs)
        found = rows(steps, limits, trials)
        yield {
            **{"subject": f"{key[0]} to {goal_text(str(key[1]), float(key[2]))}", "title": title, "lead": lead},
            "rows": [[row.optimizer, row.steps, row.critical, row.useful, row.learning_rate] for row in found],
            "limits": _limits(limits),
        }


def _limits(scaling: pd.DataFrame) -> Cells:
    """A row for each optimizer, with its limit by each of DEFINITIONS."""
    known = {(row["optimizer"], row["definition"]): row for row in scaling.to_dict("records")}
    return [
        [optimizer_text(str(name)), *(_limit(known.get((name, each), {})) for each in DEFINITIONS)]
        for name in dict.fromkeys(scaling["optimizer"])
    ]


def _limit(row: Mapping[Any, Any], prefix: str = "") -> str:
    value, low, high = (row.get(f"{prefix}estimate{end}", np.nan) for end in ("", "_low", "_high"))
    if pd.isna(value):
        return "–"
    interval = interval_text(low, high)
    return f"{BOUNDS[row[f'{prefix}estimate_bound']]}{size_text(value)}{f' ({interval})' if interval else ''}"


def _study(study: Study) -> str:
    published, steps = study.published, study.evidence.table("steps_to_result")
    trials = int(study.evidence.table("cost")["trials"].sum())
    stopping = listed(sorted(set(steps["stopping"])), "or")
    workers = counted(published.processes, "process", "processes")
    facts = {
        "training and evaluation": f"{duration(published.seconds)}, {workers}",
        "trainings": f"{number(trials)} in {counted(published.searches, 'search', 'searches')}, stopping={stopping}",
        "machine": "; ".join(published.machines),
        "versions": "; ".join(published.versions),
        "trained": " to ".join(dict.fromkeys(filter(None, [published.first, published.last]))),
        "SHA-256 of the measurements": f"`{published.digest}`",
    }
    figures = [
        {"name": name, "text": text}
        for name, text in FIGURES.items()
        if (published.folder / "figures" / f"{name}.svg").exists()
    ]
    answers, definitions = list(_answers(study.evidence)), list(DEFINITIONS.values())
    return _rendered(
        "study", study=study, answers=answers, figures=figures, facts=facts.items(), definitions=definitions
    )


def _leaderboard(evidence: Evidence) -> str:
    steps = standings.fewest(evidence)
    return _rendered(
        "leaderboard",
        furthest=_furthest(evidence),
        fewest=_fewest(steps),
        factors=[f"within {factor:g}" for factor in FACTORS],
        profile=_profile(steps),
    )


def _furthest(evidence: Evidence) -> Cells:
    return [
        [
            *(row["workload"], row["goal"], optimizer_text(row["optimizer"])),
            *(part for prefix in ("", "critical_") for part in (_rank(row, prefix), _limit(row, prefix))),
        ]
        for row in standings.furthest(evidence).to_dict("records")
    ]


def _rank(row: Mapping[Any, Any], prefix: str) -> str:
    return f"{row[f'{prefix}rank']}{'=' if row[f'{prefix}tied'] else ''}"


def _fewest(steps: pd.DataFrame) -> Cells:
    return [
        [workload, goal, f"{batch_size:,}", _with_steps(mine[mine["leads"]]), _with_steps(mine[~mine["leads"]])]
        for (workload, goal, batch_size), mine in steps.groupby(standings.PROBLEM)
        if len(mine) > 1
    ]


def _with_steps(mine: pd.DataFrame) -> str:
    def text(row: Mapping[Any, Any]) -> str:
        steps = f"{BOUNDS[row['bound']]}{number(round(row['steps']))}" if np.isfinite(row["steps"]) else "missed"
        return f"{row['optimizer']} {steps}"

    return ", ".join(map(text, mine.sort_values("steps").to_dict("records"))) or "–"


def _profile(steps: pd.DataFrame) -> Cells:
    cells: Cells = []
    for optimizer, mine in standings.profile(steps).groupby("optimizer"):
        shares = [mine.loc[mine["factor"] <= factor + 1e-9, "share"].max() for factor in FACTORS]
        problems = int(mine["problems"].iloc[0])
        cells.append([optimizer_text(str(optimizer)), problems, *(f"{share:.0%}" for share in shares)])
    return cells


def _claims(judged: Sequence[Judged], settled: Mapping[str, Settles]) -> str:
    rows = [
        [f"[({each.letter})](#{each.letter})", each.claim.text, each.claim.source, f"**{each.verdict}**"]
        for each in judged
    ]
    return _rendered(
        "claims", rows=rows, judged=judged, settled=settled, statements={each.letter: _cells(each) for each in judged}
    )


def _cells(judged: Judged) -> Cells:
    return [
        [
            *(part, each.subject, each.quantity, short(each.value), _interval(each.low, each.high)),
            *(each.claimed, verdict),
        ]
        for part, each, verdict in judged.statements
    ]


def _interval(low: float, high: float) -> str:
    if np.isnan([low, high]).any():
        return "–"
    return f"above {short(low)}" if np.isinf(high) else f"{short(low)} to {short(high)}"
