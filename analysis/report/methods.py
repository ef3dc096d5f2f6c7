"""Renders docs/methods.md for the page, and links terms on the page to their definitions."""

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

# A term on the page -> the bold term of docs/methods.md that defines it. Longer terms come first.
TERMS = {
    "maximum useful batch size": "Maximum useful batch size",
    "perfect-scaling limit": "Perfect-scaling limit",
    "best of a quarter of the trials": "S_n",
    "median best of n": "How many trials it takes",
    "times the tuned steps": "Rules against tuning",
    "critical batch size": "Critical batch size",
    "examples to result": "Examples to result",
    "minimum of the model": "Minimum of the model",
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


@cache
def rendered() -> str:
    """The methods as HTML; a bold term at the start of a paragraph or an item has an id (`anchor`).

    >>> '<span id="method-goal"></span><strong>Goal' in rendered()
    True
    """
    text = Path(__file__).with_name("methods.md").read_text(encoding="utf-8")
    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    first = next((at for at, token in enumerate(tokens) if token.tag == "h1"), None)
    if first is not None:  # the page has a title of its own
        del tokens[first : first + 3]
    for token in tokens:
        token.tag = "h3" if token.tag == "h2" else token.tag
        if token.type == "inline" and token.children:
            token.children = [*_marks(token.children), *token.children]
    return markdown.renderer.render(tokens, markdown.options, {})


def _marks(inline: list[Token]) -> list[Token]:
    """Empty elements with ids for the bold terms that begin a paragraph, such as `Models; Data sets; Subsets.`"""
    start = next((at for at, token in enumerate(inline) if token.type != "text" or token.content), 0)
    if inline[start].type != "strong_open":
        return []
    end = next(at for at, token in enumerate(inline) if token.type == "strong_close")
    term = "".join(token.content for token in inline[start:end])
    names = re.split(r";\s+", term.strip().rstrip("."))
    spans = [(Token("span_open", "span", 1, {"id": anchor(name)}), Token("span_close", "span", -1)) for name in names]
    return [token for pair in spans for token in pair]


def anchor(term: str) -> str:
    """The id of a term's definition.

    >>> anchor("Steps-to-result S(B)")
    'method-steps-to-result-s-b'
    """
    return "method-" + re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def defined(name: str) -> str | None:
    """The id of the definition of a title; None if the methods have none.

    >>> defined("Examples to result"), defined("Whatever")
    ('method-examples-to-result', None)
    """
    target = anchor(name)
    return target if f'id="{target}"' in rendered() else None


def pieces(sentence: str) -> list[tuple[str, str | None]]:
    """A sentence cut at the first mention of each term: (text, the id of its definition or None).

    >>> pieces("the goal; a goal")
    [('the ', None), ('goal', 'method-goal'), ('; a goal', None)]
    """
    found: list[tuple[str, str | None]] = []
    seen, end = set(), 0
    for match in _TERM.finditer(sentence):
        target = anchor(TERMS[next(term for term in TERMS if term.lower() == match[0].lower())])
        if target not in seen:
            seen.add(target)
            found += [(sentence[end : match.start()], None), (match[0], target)]
            end = match.end()
    return [piece for piece in (*found, (sentence[end:], None)) if piece[0]]
