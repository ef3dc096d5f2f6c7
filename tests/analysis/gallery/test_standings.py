"""Leaderboards on tables with known answers: who leads, who is tied, and performance profiles."""

import numpy as np
import pandas as pd
from helpers.claims.made_evidence import INF, SIZES, about, evidence, limits, scaled, seeds, steps

from analysis.figures import canvas
from analysis.figures.gallery.profiles import profiles
from analysis.gallery import standings


def test_ranks_by_the_maximum_useful_batch_size():
    useful = {"adam": (100, 90, 110), "muon": (105, 95, 116), "sgd": (20, 18, 22), "lamb": (60, 20, INF)}
    found = standings.furthest(scaled([({"optimizer": name}, {"useful": each}) for name, each in useful.items()]))
    ranks = {row["optimizer"]: (row["rank"], row["tied"]) for row in found.to_dict("records")}
    assert ranks["muon"] == ranks["adam"] == ranks["lamb"] == (1, True)  # the interval of lamb is open
    assert ranks["sgd"] == (3, False), "behind adam and muon, not behind lamb"
    assert found["optimizer"].tolist() == ["muon", "adam", "lamb", "sgd"]


def test_a_curve_without_limits_has_no_rank():
    made = scaled([({"optimizer": "adam"}, {}), ({"optimizer": "sgd"}, {"useful": None})])
    assert standings.furthest(made)["optimizer"].tolist() == ["adam"]


def three():
    """Momentum ties with SGD up to 16 and wins beyond; Adam needs a tenth more than momentum, which is in the noise."""
    names = ("sgd", "momentum", "adam")
    taken = {
        "sgd": lambda size: 20 * (1 + 16 / size),
        "momentum": lambda size: 20 * (1 + 16 / size) / (1 if size <= 16 else 4),
        "adam": lambda size: 22 * (1 + 16 / size) / (1 if size <= 16 else 4),
    }
    points = {name: np.array([taken[name](size) for size in SIZES]) for name in names}
    made = [
        steps(optimizer=name, tuned_steps=points[name], curve_steps=points[name], residual_sd=0.1) for name in names
    ]
    again = [seeds(optimizer=name, steps=taken[name], noise=0.03) for name in names]
    abouts = [about(optimizer=name) for name in names]
    return evidence(abouts, steps_to_result=made, scaling=[limits(optimizer=name) for name in names], rerun_steps=again)


def test_ties_at_each_batch_size():
    found = standings.fewest(three())
    ahead = found[found["leads"]].groupby("batch_size")["optimizer"].agg(set)
    assert ahead[8] == {"sgd", "momentum", "adam"}
    assert ahead[128] == {"momentum", "adam"}


def test_without_fresh_seeds_all_are_tied():
    made = three()
    without = evidence([], **{name: table for name, table in made.tables.items() if name != "rerun_steps"})
    without = type(without)(without.tables, made.about)
    assert standings.fewest(without)["leads"].all()


def test_profiles_count_what_was_tried():
    rows = [("a", 8, "adam", 10.0), ("a", 8, "sgd", 20.0), ("a", 16, "adam", 8.0), ("a", 16, "sgd", INF)]
    rows += [("b", 8, "sgd", 5.0)]  # alone: no problem of a profile
    steps_ = pd.DataFrame(rows, columns=["workload", "batch_size", "optimizer", "steps"])
    steps_ = steps_.assign(goal="loss < 1", bound="=")
    found = standings.profile(steps_)
    at_two = found[found["factor"] <= 2].groupby("optimizer").last()
    assert at_two["share"].to_dict() == {"adam": 1.0, "sgd": 0.5}
    assert set(found["problems"]) == {2}
    figure = canvas.draw(lambda ax: profiles(ax, found))
    assert [line.get_ydata()[-1] for line in figure.axes[0].lines] == [1.0, 0.5]


def test_who_met_the_goal_at_the_first_evaluation_did_not_miss_it():
    made = three()
    taken = made.table("steps_to_result")
    at_once = (taken["optimizer"] == "adam") & (taken["batch_size"] == 8)
    tables = {**made.tables, "steps_to_result": taken.assign(first_evaluation=np.where(at_once, 1e6, 1))}
    found = standings.fewest(type(made)(tables, made.about))
    adam = found[(found["optimizer"] == "adam") & (found["batch_size"] == 8)].iloc[0]
    assert (adam["bound"], adam["leads"]) == ("<", True)
    assert adam["steps"] == 66
    problems = standings.profile(found).groupby("optimizer")["problems"].first()
    assert set(problems) == {len(SIZES) - 1}, "the best at batch size 8 is unknown"
    assert standings.profile(found).groupby("optimizer")["share"].max().eq(1).all()
