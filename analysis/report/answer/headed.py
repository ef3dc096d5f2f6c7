"""Findings under headings, without repeating the workload, optimizer and goal that the headings hold."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from analysis.labels import optimizer_text
from analysis.report.answer import Answer
from analysis.report.answer.finding import begun, named

COMPARED = "Compared"


class Headed(NamedTuple):
    """The sentences about one optimizer, or about all of them (COMPARED)."""

    heading: str
    sentences: list[str]


class Findings(NamedTuple):
    """The findings of a report.

    Attributes:
        of_answers: for each answer, its headings with their sentences.
        others: sentences about no single answer, such as the step budget.
    """

    of_answers: list[list[Headed]]
    others: list[str]


def headed(sentences: Iterable[str], answers: Sequence[Answer]) -> Findings:
    """Sort sentences under headings by what they begin with.

    >>> answer = Answer(("digits", "error", 0.1), ["sgd"], "SGD scales", "", [], None)
    >>> said = ["digits with sgd to error < 0.1: steps fall.", "digits with sgd after 2 tokens: x.", "Budget: 9 steps."]
    >>> found = headed(said, [answer])
    >>> found.of_answers
    [[Headed(heading='SGD', sentences=['Steps fall.', 'After 2 tokens: x.'])]]
    >>> found.others
    ['Budget: 9 steps.']
    """
    found: list[dict[str, list[str]]] = [{} for _ in answers]
    others = []
    for sentence in sentences:
        for answer, parts in zip(answers, found, strict=True):
            if placed := _placed(sentence, answer):
                heading, text = placed
                text = named(text, answer.optimizers) if heading == COMPARED else text
                parts.setdefault(heading, []).append(begun(text))
                break
        else:
            others.append(short(sentence, answers))
    return Findings([[Headed(*part) for part in parts.items()] for parts in found], others)


def _placed(sentence: str, answer: Answer) -> tuple[str, str] | None:
    """(heading, the rest of the sentence) if the sentence is about this answer."""
    subjects = [(f"{answer.subject}: ", COMPARED)]
    for name in answer.optimizers:
        curve, heading = f"{answer.workload} with {name}", optimizer_text(name)
        subjects += [(f"{curve} to {answer.goal}: ", heading), (f"{curve}: ", heading), (f"{curve} after ", heading)]
    for subject, heading in subjects:
        if sentence.startswith(subject):
            return heading, f"{'after ' if subject.endswith('after ') else ''}{sentence.removeprefix(subject)}"
    return None


def short(sentence: str, answers: Sequence[Answer]) -> str:
    """A sentence or warning without the workload if the report has only one.

    >>> answer = Answer(("digits", "error", 0.1), ["sgd"], "SGD scales", "", [], None)
    >>> short("digits, sgd, batch size 8: few trials.", [answer]), short("digits with sgd: none.", [answer] * 2)
    ('sgd, batch size 8: few trials.', 'sgd: none.')
    """
    workloads = {answer.workload for answer in answers}
    if len(workloads) != 1:
        return sentence
    [name] = workloads
    return sentence.removeprefix(f"{name}, ").replace(f"{name} with ", "")
