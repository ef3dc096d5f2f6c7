"""Shows on the terminal what a sweep will cost, with ways to make it cheaper."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from analysis.counting import STOPPING
from analysis.labels import about, batch_sizes, counted, number, rough, short_count
from study.engine.cost import Work, evaluation_share, fewer_examples
from study.records import COMMAND, Study
from study.settings import Search
from study.terminal.show import narrowed

QUICK_TRIALS = 8
"""The trials of preset=quick: the preset does not make a search of so few trials cheaper."""
FEWER_ROUNDS = (4, 4, 3)
"""Rounds of a cheaper search=refine."""
MOST_EVALUATION = 0.3
"""The share of the time of a sweep above which evaluations are too expensive."""
RACES_LEAVE = (0.02, 0.16)
"""Shares of the steps of full budgets that trials take under races: the middle half of the curves in results/published,
which lie between 0.2 % and, where an optimizer hardly reached its goal, 100 %."""
LEFT_OUT = ("evaluating", "ms a step", "examples", "tokens", "steps each")
"""Columns that narrow terminals have no room for, the least important first."""
LONG = 600
"""Seconds; a longer sweep is shown with ways to make it cheaper."""


def show(console: Console, left: Sequence[Work], place: str, workers: int, cheaper: str | None = None) -> None:
    """Show what the remaining work will cost if every trial runs its whole budget.

    Arguments:
        place: the devices, such as `cpu` or `4 x cuda`.
        cheaper: advice on how to make it cheaper; None: name settings of a sweep.
    """
    if not left:
        return
    for (workload, optimizer), group in groupby(sorted(left, key=_curve), key=_curve):
        console.print(f"[bold]{workload}, {optimizer}[/]: what it will cost")
        _table(console, list(group), workers)
    # Searches of one study share the text; two curves at one batch size may differ in it.
    for text in dict.fromkeys(work.cost.composition(work.study.batch_size) for work in left if work.cost.parts):
        console.print(f"Batch size {text}.")
    rule = STOPPING[left[0].study.stopping]
    early = f" {rule.in_words}" if rule.in_words else ""
    if not all(work.cost.known for work in left):
        console.print(f"\nHow long a command takes is not known before a trial at its batch size has ended.{early}\n")
        return
    total = sum(work.seconds(workers) for work in left)
    commands = left[0].study.arithmetic == COMMAND
    measured = "by the trials that have ended" if commands else "measured on a few real steps"
    console.print(
        f"\n{about(total).capitalize()} at full budget with {counted(workers, 'worker')} on {place}, {measured}.{early}"
    )
    if rule.races and total > LONG:  # of shorter ones, starts and proposals take as long as training
        low, high = (rough(share * total) for share in RACES_LEAVE)
        console.print(
            f"Expect {low} to {high}: half of the curves in this project's published sweeps needed "
            f"{RACES_LEAVE[0]:.0%} to {RACES_LEAVE[1]:.0%} of their full budget. "
            "A goal that is hardly reached needs more."
        )
    if not commands:  # which evaluate as they like
        console.print(evaluating(left))
    search = left[0].study.search
    more = [*(["wider search spaces"] if search.extend else []), *(["fresh seeds"] if search.reruns else [])]
    if more:
        console.print(f"Not included: {' and '.join(more)}, which depend on the results.")
    if total > LONG:
        cure = cheaper or ways_to_cheapen([work.study for work in left])
        console.print(f"To make it cheaper: {cure}.")
    console.print()


def evaluating(left: Sequence[Work]) -> str:
    """The share of the time that evaluations take and, if it is large, settings that reduce it."""
    share = evaluation_share(left)
    said = f"Evaluation takes {share:.0%} of it"
    if share <= MOST_EVALUATION:
        return f"{said}."
    examples = fewer_examples(left, MOST_EVALUATION)
    if examples is None:
        ratio = left[0].study.evaluation.ratio
        return f"{said}; evaluation.ratio={1 + 2 * (ratio - 1):.3g} evaluates half as often, or give a larger budget."
    then = evaluation_share(left, examples)
    return f"{said}; with evaluation.examples={examples} it takes {then:.0%}, at the price of noisier errors."


def _curve(work: Work) -> tuple[str, str]:
    return work.study.name, work.study.series


def _table(console: Console, left: Sequence[Work], workers: int) -> None:
    """A row per search of one curve. Narrow terminals show fewer columns, and no broken number."""
    console.print(narrowed(console, [_row(work, workers) for work in left], LEFT_OUT))
    for bases in sorted({work.cost.predicted_from for work in left if work.cost.predicted_from}):
        sizes = sorted({work.study.batch_size for work in left if work.cost.predicted_from == bases})
        console.print(f"Not measured: {batch_sizes(sizes)}, predicted from the steps of {batch_sizes(bases)}.")


def _row(work: Work, workers: int) -> dict[str, str]:
    """Heading -> what one search will cost."""
    plan = work.plan(workers)
    tokens = work.study.tokens_per_example is not None
    return {
        "batch size": f"{work.study.batch_size:,}",
        "search": str(work.study.branch),
        "trials": f"{work.trials:,}",
        "steps each": f"{work.study.last_step:,}",
        "tokens" if tokens else "examples": short_count(plan["tokens" if tokens else "examples"]),
        "ms a step": number(1000 * work.cost.step) if work.cost.known else "?",
        "evaluating": f"{plan['evaluation_share']:.0%}" if work.study.arithmetic != COMMAND else "?",
        "at full budget": rough(plan["seconds"], short=True) if work.cost.known else "?",
    }


def ways_to_cheapen(studies: Sequence[Study]) -> str:
    """Settings that make a sweep of these searches cheaper."""
    search, epochs, tokens = studies[0].search, studies[0].budget.epochs, studies[0].budget.tokens
    sizes = sorted({study.batch_size for study in studies})
    ways = [
        *(["preset=quick"] if search.trials > QUICK_TRIALS else []),
        *_fewer_trials(search),
        *([f"batch_size={sizes[len(sizes) // 4]},{sizes[3 * len(sizes) // 4]}"] if len(sizes) > 2 else []),
        *([f"budget.epochs={epochs / 2:g}"] if epochs else []),
        *([f"budget.tokens={tokens / 2:g}"] if tokens and not epochs else []),
    ]
    return " or ".join([text for text in (", ".join(ways[:-1]), *ways[-1:]) if text]) or "a smaller model"


def _fewer_trials(search: Search) -> list[str]:
    """`search.trials` would replace the rounds of `refine` by another search, or be refused."""
    if search.refines:
        return [f"search.refine={[*FEWER_ROUNDS]}".replace(" ", "")] if sum(search.refine) > sum(FEWER_ROUNDS) else []
    return [f"search.trials={search.trials // 2}"] if search.trials > 1 else []
