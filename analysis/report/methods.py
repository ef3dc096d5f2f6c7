"""docs/methods.md inside the page: rendered, and linked from the terms that it defines."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

# What a page says -> the bold term of docs/methods.md that defines it. The longer come first.
TERMS = {
    "maximum useful batch size": "Maximum useful batch size",
    "perfect-scaling limit": "Perfect-scaling limit",
    "best of a quarter of the trials": "S_n",
    "median best of n": "How many trials it takes",
    "times the tuned steps": "Rules against tuning",
    "critical batch size": "Critical batch size",
    "examples to result": "Examples to result",
    "perfect scaling": "Perfect-scaling limit",
    "steps to result": "Steps-to-result S(B)",
    "stopping=race": "Races",
    "step budget": "Step budget",
    "steps-to-result": "Steps-to-result S(B)",
    "infeasible": "Trial status",
    "shoulder": "Critical batch size",
    "hyperbola": "Critical batch size",
    "S(B)": "Steps-to-result S(B)",
    "goal": "Goal",
}
_TERM = re.compile("|".join(rf"(?<![\w-]){re.escape(term)}(?![\w-])" for term in TERMS), re.IGNORECASE)
_OUTSIDE_TAGS = re.compile(r"(<[^>]*>)")


@cache
def rendered() -> str:
    """The methods as HTML; what is bold at the start of a paragraph or an item has an id: see `anchor`.

    >>> '<span id="method-goal"></span><strong>Goal' in rendered()
    True
    """
    text = Path(__file__).with_name("methods.md").read_text(encoding="utf-8")
    body = MarkdownIt("commonmark").enable("table").render(text)
    body = re.sub(r"<h1>.*?</h1>", "", body, count=1)
    body = body.replace("<h2>", "<h3>").replace("</h2>", "</h3>")
    return re.sub(r"(<p>|<li>)<strong>(.*?)</strong>", _with_ids, body, flags=re.DOTALL)


def _with_ids(match: re.Match[str]) -> str:
    """One id for each of several terms that share a paragraph: `Models; Data sets; Subsets.`"""
    names = re.split(r";\s+", match[2].strip().rstrip("."))
    marks = "".join(f'<span id="{anchor(name)}"></span>' for name in names)
    return f"{match[1]}{marks}<strong>{match[2]}</strong>"


def anchor(term: str) -> str:
    """The id of a term's definition.

    >>> anchor("Steps-to-result S(B)")
    'method-steps-to-result-s-b'
    """
    return "method-" + re.sub(r"[^a-z0-9]+", "-", re.sub(r"<.*?>", "", term).lower()).strip("-")


def linked(escaped: str) -> str:
    """A piece of HTML with the first mention of each term linked to its definition; what stands in tags is left alone.

    >>> linked("the goal; a goal")
    'the <a href="#method-goal">goal</a>; a goal'
    """
    seen: set[str] = set()

    def link(match: re.Match[str]) -> str:
        target = anchor(TERMS[next(term for term in TERMS if term.lower() == match[0].lower())])
        if target in seen:
            return match[0]
        seen.add(target)
        return f'<a href="#{target}">{match[0]}</a>'

    parts = _OUTSIDE_TAGS.split(escaped)
    return "".join(part if part.startswith("<") else _TERM.sub(link, part) for part in parts)


def title(name: str) -> str:
    """The title of a figure or table, linked to its definition if it has one of its own.

    >>> title("Examples to result")
    '<a href="#method-examples-to-result">Examples to result</a>'
    """
    target = anchor(name)
    return f'<a href="#{target}">{name}</a>' if f'id="{target}"' in rendered() else name
