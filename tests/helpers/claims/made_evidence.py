"""Tables made by hand for the claims: curves with limits, learning rates, betas, seeds, trials and errors."""

import numpy as np
import pandas as pd

from analysis.claims.evidence import ABOUT, Evidence

METRIC = "val/classification_error"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
KEY = {"goal_metric": METRIC, "goal_threshold": 0.05}
INF, NAN = np.inf, np.nan


def steps(workload="digits", optimizer="sgd", sizes=SIZES, critical=16, **columns):
    """S(B) = 20 (1 + critical / B), known from fresh seeds within 10 %; `columns`: further ones."""
    sizes = np.array(sizes)
    taken = 20 * (1 + critical / sizes)
    return pd.DataFrame(
        {
            **{"workload": workload, "optimizer": optimizer, "batch_size": sizes, **KEY},
            **{"reached": True, "steps_to_result": taken, "tuned_steps": taken, "curve_steps": taken},
            **{
                "tuned_low": taken / 1.1,
                "tuned_high": taken * 1.1,
                "optimum_low": taken / 1.1,
                "optimum_high": taken * 1.1,
            },
            **{"read_from": "fresh seeds", "seeds": 4, "missed": 0, "residual_sd": 0.02, "seed_sd": 0.05},
            **columns,
        }
    )


def limits(workload="digits", optimizer="sgd", critical=(16, 14, 18), perfect=(4, 3, 5), useful=(48, 40, 60)):
    """Each limit with its interval; bounds are read from a fourth entry."""
    kinds = {
        "critical_batch_size_mccandlish": critical,
        "perfect_scaling_limit": perfect,
        "maximum_useful_batch_size": useful,
    }
    rows = [(name, *each, *("=",) * (4 - len(each))) for name, each in kinds.items() if each is not None]
    columns = ["definition", "estimate", "estimate_low", "estimate_high", "estimate_bound"]
    found = pd.DataFrame(rows, columns=columns).assign(workload=workload, optimizer=optimizer, **KEY)
    return found.astype(dict.fromkeys(columns[1:4], float))


def seeds(workload="digits", optimizer="sgd", sizes=SIZES, steps=lambda size: 20 * (1 + 16 / size), noise=0.01):
    """Four fresh seeds of each batch size."""
    rows = [
        {"workload": workload, "optimizer": optimizer, "batch_size": size, **KEY, "rerun": seed, "status": "COMPLETE",
         "steps": steps(size) * np.exp(noise * (seed - 1.5) * (1 + size % 3))}
        for size in sizes for seed in range(4)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def about(
    workload="digits",
    optimizer="sgd",
    dataset="digits",
    part="1000",
    model='{"widths": [8]}',
    smoothing=0.0,
    parameters=NAN,
):
    examples = float(part) if part.isdecimal() else np.nan
    return (workload, optimizer, dataset, part, model, parameters, examples, smoothing, True)


ABOUT_ONE = (about(),)


def evidence(abouts=ABOUT_ONE, **tables):
    """Evidence of these rows of `about`; each table is a frame or a list of frames."""
    made = {
        name: each if isinstance(each, pd.DataFrame) else pd.concat(each, ignore_index=True)
        for name, each in tables.items()
    }
    return Evidence(made, pd.DataFrame(list(abouts), columns=ABOUT))


def scaled(curves, sizes=SIZES):
    """Evidence of curves given as (row of `about`, limits as keywords)."""
    abouts = [about(**made) for made, _ in curves]
    names = [{"workload": each[0], "optimizer": each[1]} for each in abouts]
    tables = {
        "steps_to_result": [steps(**name, sizes=sizes) for name in names],
        "scaling": [limits(**name, **each) for name, (_, each) in zip(names, curves, strict=True)],
    }
    return evidence(abouts, **tables)


def trials(share, workload="digits", optimizer="sgd", sizes=SIZES, count=40, unit="steps"):
    """Trials with full budgets; the share `share(size)` of them reaches the goal within one budget of a unit.

    The budget is 100 steps at the largest batch size, which is that of all others, or as many examples as these are.
    """
    rows = []
    for size in sizes:
        budget = 100 if unit == "steps" else 100 * max(sizes) // size
        good = round(share(size) * count)
        for trial in range(count):
            reached = budget // 2 if trial < good else pd.NA
            rows.append({"workload": workload, "optimizer": optimizer, "batch_size": size, **KEY, "trial": trial,
                         "status": "COMPLETE", "end": budget, "steps_to_goal": reached, "first_bad_step": pd.NA,
                         "stopping": "budget", "least_error": 0.04, "train_steps": budget})  # fmt: skip
    return pd.DataFrame(rows).astype({"steps_to_goal": "Int64", "first_bad_step": "Int64"})


def errors(error, workload="digits", optimizer="sgd", sizes=SIZES):
    """The best error of each batch size, reached at its last step; all batch sizes have the same steps."""
    rows = [
        {"workload": workload, "optimizer": optimizer, "goal_metric": METRIC, "batch_size": size,
         "train_examples": 1000, "step": 100, "error": error(size)}
        for size in sizes
    ]  # fmt: skip
    return pd.DataFrame(rows)
