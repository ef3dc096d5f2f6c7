"""Counts in examples and in tokens: half-lives, warmups and batch sizes. An example of T tokens counts as T of them.

B is the batch size in examples, T `tokens_per_example` of a workload.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

TOKENS = "tokens_per_example"
"""The key of a recorded question that holds T; absent for workloads without tokens."""
HALF_LIFE = "_half_life_examples"
"""The suffix of a hyperparameter that gives a beta by its half-life of t examples: beta = 0.5^(B / t)."""
HALF_LIFE_TOKENS = "_half_life_tokens"
"""The same in tokens: beta = 0.5^(B T / t)."""
HALF_LIVES = (HALF_LIFE, HALF_LIFE_TOKENS)
IN_EXAMPLES = {HALF_LIFE_TOKENS: HALF_LIFE, "warmup_tokens": "warmup_examples"}
"""End of the name of a hyperparameter that counts tokens -> the end that counts examples."""
MULTIPLES = {"": 1, "k": 2**10, "m": 2**20}
IN_TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([km]?) ?tokens?", re.IGNORECASE)


def stem(name: str) -> str:
    """The name of the beta that a half-life gives; other names as they are.

    >>> stem("beta2_half_life_tokens"), stem("beta2_half_life_examples"), stem("beta2")
    ('beta2', 'beta2', 'beta2')
    """
    for suffix in HALF_LIVES:
        name = name.removesuffix(suffix)
    return name


def counts_tokens(name: str) -> bool:
    """Whether a hyperparameter is a number of tokens: a half-life or a warmup.

    >>> counts_tokens("warmup_tokens"), counts_tokens("warmup_examples")
    (True, False)
    """
    return name.endswith(tuple(IN_EXAMPLES))


def in_examples(values: Mapping[str, Any], tokens_per_example: int | None) -> dict[str, Any]:
    """Hyperparameters with numbers of examples in place of numbers of tokens.

    >>> in_examples({"learning_rate": 0.1, "warmup_tokens": 640, "beta2_half_life_tokens": 128.0}, 64)
    {'learning_rate': 0.1, 'warmup_examples': 10.0, 'beta2_half_life_examples': 2.0}
    """
    found = {}
    for name, value in values.items():
        for tokens, examples in IN_EXAMPLES.items() if tokens_per_example else ():
            if name.endswith(tokens):
                name, value = name.removesuffix(tokens) + examples, value / tokens_per_example
        found[name] = value
    return found


def beta(half_life: Any, batch_size: int) -> Any:
    """The decay rate per update of a moving average with this half-life in examples.

    At most the largest float32 below 1, because updates divide by 1 - beta.

    >>> float(beta(64, batch_size=128))
    0.25
    """
    return np.minimum(0.5 ** (batch_size / half_life), 1 - 2.0**-24)


def tokens_in(text: str) -> int | None:
    """The number of tokens in a text such as `32k tokens`, with k = 1,024 and M = 1,048,576; None if it has none.

    >>> tokens_in("32k tokens"), tokens_in("0.5M tokens"), tokens_in("512 tokens"), tokens_in("512")
    (32768, 524288, 512, None)
    """
    found = IN_TOKENS.fullmatch(text.strip())
    if found is None:
        return None
    count = float(found[1]) * MULTIPLES[found[2].lower()]
    return int(count) if count.is_integer() and count >= 1 else None


def sequences(what: str, tokens: int, tokens_per_example: int | None, whose: str) -> int:
    """The number of examples of T tokens each that hold this many tokens.

    Arguments:
        what: the setting, as it was given, for the message.
        whose: the name of the workload.

    Raises:
        ValueError: the workload has no tokens, or T does not divide them; the message has the nearest numbers.

    >>> sequences("batch_size=32k tokens", 32768, 64, "mine")
    512
    """
    if tokens_per_example is None:
        raise ValueError(
            f"{what} counts tokens, but {whose} has no {TOKENS}; give a number of examples, or add this member to its "
            "class."
        )
    below, rest = divmod(tokens, tokens_per_example)
    if not rest:
        return below
    near = [f"{count:,} ({count * tokens_per_example:,} tokens)" for count in (below, below + 1) if count]
    raise ValueError(
        f"{what} is {tokens:,} tokens, but a batch of {whose} has whole sequences of {tokens_per_example:,} tokens; "
        f"the nearest numbers of sequences are {' and '.join(near)}."
        if below
        else f"{what} is {tokens:,} tokens, but one sequence of {whose} has {tokens_per_example:,}; give 1 or more "
        "sequences."
    )
