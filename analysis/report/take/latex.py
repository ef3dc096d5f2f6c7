"""Tables of the page as LaTeX, with the rules of the package booktabs."""

from collections.abc import Sequence

MOST_ROWS = 500
"""A longer table is of no use in a paper; its CSV file has all rows."""
SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": "$<$", ">": "$>$", "\N{LESS-THAN OR EQUAL TO}": r"$\leq$", "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$"},
    **{"\N{INFINITY}": r"$\infty$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MULTIPLICATION SIGN}": r"$\times$"},
    **{"\N{MINUS SIGN}": "$-$", "\N{EN DASH}": "--", "\N{HORIZONTAL ELLIPSIS}": r"\ldots{}"},
    **{"\N{NO-BREAK SPACE}": "~", "\N{NON-BREAKING HYPHEN}": "-", "\N{MICRO SIGN}": r"$\mu$"},
}


def escaped(text: str) -> str:
    """A text with every special character written out.

    >>> print(escaped("mlp_digits: 95 % of S(B) \N{GREATER-THAN OR EQUAL TO} 64"))
    mlp\\_digits: 95 \\% of S(B) $\\geq$ 64
    """
    return "".join(SPECIAL.get(character, character) for character in text)


def latex(caption: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> str:
    """A table environment.

    Arguments:
        columns: (heading, whether it holds numbers, which are aligned to the right).
        rows: the texts of the cells.

    >>> print(latex("Limits.", [("optimizer", False), ("limit", True)], [["sgd", "64"]]))
    % Needs the package booktabs in the preamble.
    \\begin{table}
    \\caption{Limits.}
    \\begin{tabular}{lr}
    \\toprule
    optimizer & limit \\\\
    \\midrule
    sgd & 64 \\\\
    \\bottomrule
    \\end{tabular}
    \\end{table}
    <BLANKLINE>
    """
    align = "".join("r" if numeric else "l" for _, numeric in columns)
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in ([name for name, _ in columns], *rows)]
    return "\n".join(
        [
            "% Needs the package booktabs in the preamble.",
            r"\begin{table}",
            rf"\caption{{{escaped(caption)}}}",
            rf"\begin{{tabular}}{{{align}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
