"""Every claim by its letter, and the table of their verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.claims import errors, optimizers, scaling, tuning
from analysis.claims.evidence import Evidence
from analysis.claims.statement import CONTRADICTED, NOT_SHOWN, NOT_TESTED, SHOWN, Ruling, Statement, Tree
from analysis.labels import counted

PAPER = "Shallue et al. 2019"


class Claim(NamedTuple):
    """A claim.

    Attributes:
        text: what it says.
        source: the figures or papers that it is from.
        tree: evidence -> the statements behind it.
        test: the keys of a sweep that tests it, where no results do; they extend the command of a measured workload.
        models: workloads to sweep if it takes others than those measured.
    """

    text: str
    source: str
    tree: Callable[[Evidence], Tree]
    test: Mapping[str, str]
    models: Sequence[Mapping[str, str]] = ()


FULL = {"stopping": "budget", "search": "sobol", "search.trials": "50"}
"""Keys of a sweep whose trials can answer any goal and budget."""
CLAIMS = {
    "a": Claim(
        "On every workload steps fall in proportion to the batch size, then by less, then no more.",
        f"{PAPER}, figure 1", scaling.regimes, {},
    ),
    "b": Claim(
        "Another goal moves the curve, but keeps its shape.",
        f"{PAPER}, figure 2", scaling.goals, FULL,
    ),
    "c": Claim(
        "Momentum and Nesterov extend perfect scaling beyond SGD, and equal it at small batch sizes.",
        f"{PAPER}, figure 4", optimizers.momentum, {"optimizer": "sgd,momentum,nesterov"},
    ),
    "d": Claim(
        "Models differ in how far they scale, and a wider one does not always scale further.",
        f"{PAPER}, figure 3", scaling.models, {},
        [{"workload": "fc_mnist", "workload.name": f"fc_mnist_{width}", "workload.widths": f"[{width}]"}
         for width in (128, 1024)],
    ),
    "e": Claim(
        "The data set matters less than model and optimizer, and its size little.",
        f"{PAPER}, figures 5 and 6", scaling.data, {},
        [{"workload": "softmax_mnist"}, {"workload": "softmax_fashion_mnist"},
         {"workload": "softmax_mnist", "workload.name": "softmax_mnist_6875", "workload.train_examples": "6875",
          "batch_size": "2,8,32,128,512,2048"}],
    ),
    "f": Claim(
        "Neither the best learning rate nor the effective one follows the linear or the square-root rule everywhere.",
        f"{PAPER}, figure 8", tuning.learning_rates, {"optimizer": "sgd,momentum"},
    ),
    "g": Claim(
        "The metaparameters that reach the goal become fewer with the batch size at fixed epochs, more at fixed steps.",
        f"{PAPER}, figures 9 and 10", tuning.regions, FULL,
    ),
    "h": Claim(
        "At equal steps a larger batch size reaches no worse error, and regularisation helps it more.",
        f"{PAPER}, figures 7 and 12", errors.errors,
        {**FULL, "search.space.label_smoothing": "{choices:[0,0.01,0.1]}"},
    ),
    "i": Claim(
        "Adam-like and second-order optimizers scale further than momentum; half-lives transfer rather than betas; "
        "small batches with tuned betas are as good per example.",
        "Zhang et al. 2019; Marek et al. 2025", optimizers.beyond,
        {"optimizer": "adam", "search.space.beta2": "{low:0.9,high:0.99999,scale:reverse_log,hard:[]}"},
    ),
}  # fmt: skip
COLUMNS = ["claim", "text", "source", "verdict", "statements", "shown", "contradicted", "evidence"]
OF_STATEMENTS = ["claim", "part", "subject", "quantity", "value", "low", "high", "claimed", "verdict"]


class Judged(NamedTuple):
    """A claim with its verdict.

    Attributes:
        letter, claim: its key and value in CLAIMS.
        verdict: of `analysis.claims.statement`.
        tree: its statements.
    """

    letter: str
    claim: Claim
    verdict: str
    tree: Tree

    @property
    def statements(self) -> list[Ruling]:
        """Every statement with its part and verdict."""
        return list(self.tree.judged())

    @property
    def evidence(self) -> str:
        """The parts, as sentences."""
        return ". ".join(self.parts)

    @property
    def parts(self) -> list[str]:
        """The decisive statement of each part, with the number of those that are shown."""
        said = []
        for part, verdict, found in self.tree.named():
            shown, against = (sum(each.verdict == kind for each in found) for kind in (SHOWN, CONTRADICTED))
            counts = f"{shown} of {counted(len(found), 'statement')} shown"
            counts += f", {against} contradicted" if against else ""
            heading = f"{part.name}: {verdict}, " if part.name else ""
            by_one = verdict == CONTRADICTED and against > 0  # whatever the mean over curves is
            mean = part.mean if part.pooled and not by_one else None
            if mean and shown == len(found) and mean.verdict() != SHOWN:
                mean = None  # each of few curves shows it; their mean, with hardly a degree of freedom, need not
            said.append(f"{heading}{counts}; {(mean or _decisive(found, verdict)).text}")
        return said

    def row(self) -> dict[str, Any]:
        """The row of `table`.

        >>> from analysis.gallery import gather
        >>> judge(gather.one(published))[0].row()["source"]
        'Shallue et al. 2019, figure 1'
        """
        verdicts = [each.verdict for each in self.statements]
        return {
            **{"claim": self.letter, "text": self.claim.text, "source": self.claim.source, "verdict": self.verdict},
            **{"statements": len(verdicts), "shown": verdicts.count("shown")},
            **{"contradicted": verdicts.count("contradicted"), "evidence": self.evidence},
        }


def _decisive(found: Iterable[Ruling], verdict: str) -> Statement:
    """The statement that says most on a verdict: one with this verdict, else one that is open; the surest of them."""
    order = {verdict: 0, NOT_SHOWN: 1}
    return min(found, key=lambda each: (order.get(each.verdict, 2), _width(each.statement))).statement


def _width(statement: Statement) -> float:
    """The width of an interval, relative to the number on a log scale; infinite if it is open or unknown."""
    low, high = statement.low, statement.high
    if not np.isfinite([low, high]).all() or (statement.log and low <= 0):
        return np.inf
    return float(np.log(high / low) if statement.log else high - low)


def judge(evidence: Evidence) -> list[Judged]:
    """Every claim with its verdict, by letter.

    >>> judged = judge(Evidence({}, pd.DataFrame(columns=["workload", "optimizer", "independent"])))
    >>> {each.verdict for each in judged}
    {'not tested'}
    """
    found = []
    for letter, claim in CLAIMS.items():
        tree = claim.tree(evidence)
        found.append(Judged(letter, claim, tree.verdict(), tree))
    return found


def table(judged: Iterable[Judged]) -> pd.DataFrame:
    """The verdicts on the claims that results test.

    Returns:
        A row for each claim: claim (its letter), text, source, verdict, the numbers of statements behind it, of those
        shown and of those contradicted, and evidence (the decisive statement of each part, in a sentence).

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> table(judge(evidence))["claim"].tolist()
    ['a', 'b', 'c', 'f', 'g', 'h']
    """
    rows = [each.row() for each in judged if each.verdict != NOT_TESTED]
    return pd.DataFrame(rows, columns=COLUMNS)


def statements(judged: Iterable[Judged]) -> pd.DataFrame:
    """Every statement behind the claims.

    Returns:
        A row for each: claim, part, subject, quantity, value with the 95 % interval low and high, claimed (the range in
        which the claim puts it) and verdict (at the level that it has in its claim).

    >>> from analysis.gallery import gather
    >>> evidence = gather.one(published)
    >>> found = statements(judge(evidence))
    >>> found[["claim", "quantity", "verdict"]].head(2)
      claim                                   quantity verdict
    0     a                      perfect-scaling limit   shown
    1     a  maximum useful over perfect-scaling limit   shown
    """
    rows = [
        (each.letter, name, *statement[:5], statement.claimed, verdict)
        for each in judged
        for name, statement, verdict in each.statements
    ]
    return pd.DataFrame(rows, columns=OF_STATEMENTS)
