"""Search spaces: the unit cube and back, and what is refused."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from study.space import Dimension, Legal, parse_space, values


@st.composite
def ranges(draw, scale):
    """A dimension of this scale whose width is well above rounding."""
    if scale == "linear":
        low = draw(st.floats(-1e6, 1e6))
        return Dimension(low, low + draw(st.floats(1e-2, 1e6)))
    if scale == "log":
        low = draw(st.floats(1e-12, 1e6))
        return Dimension(low, low * draw(st.floats(1.01, 1e9)), scale)
    away = draw(st.floats(1e-5, 2.0))  # 1 - high
    return Dimension(1 - away * draw(st.floats(1.01, 1e3)), 1 - away, scale)


dimensions = st.one_of(ranges("linear"), ranges("log"), ranges("reverse_log"))


@st.composite
def integers(draw):
    low = draw(st.integers(1, 1000))
    high = low + draw(st.integers(1, 1000))
    return Dimension(low, high, draw(st.sampled_from(["linear", "log"])), integer=True)


choices = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6, unique=True).map(
    lambda values: Dimension(choices=tuple(values))
)
units = st.floats(0, 1, exclude_max=True)


@given(dimensions, units, units)
def test_a_range_maps_the_unit_interval_onto_itself(dimension, one, other):
    low, high = (dimension.value(unit) for unit in sorted((one, other)))
    assert dimension.low <= low <= high <= dimension.high
    assert dimension.unit(low) == pytest.approx(min(one, other), abs=1e-6)


@given(dimensions)
def test_the_ends_of_a_range_are_included(dimension):
    assert dimension.value(0.0) == pytest.approx(dimension.low, rel=1e-9, abs=1e-9)
    assert dimension.value(1.0) == pytest.approx(dimension.high, rel=1e-9, abs=1e-9)
    assert (dimension.unit(dimension.low), dimension.unit(dimension.high)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("dimension", "middle"),
    [
        (Dimension(0.0, 4.0), 2.0),
        (Dimension(1e-4, 1.0, "log"), 1e-2),
        (Dimension(0.9, 0.9999, "reverse_log"), 1 - math.sqrt(0.1 * 1e-4)),
        (Dimension(0.0, 0.99, "reverse_log"), 0.9),
    ],
)
def test_the_middle_of_each_scale(dimension, middle):
    assert dimension.value(0.5) == pytest.approx(middle)


@given(choices, units)
def test_choices_share_the_unit_interval_equally(dimension, unit):
    position = min(int(unit * len(dimension.choices)), len(dimension.choices) - 1)
    assert dimension.value(unit) == dimension.choices[position]
    for choice in dimension.choices:
        assert dimension.value(dimension.unit(choice)) == choice


@given(integers(), units)
def test_whole_numbers_own_a_cell_each(dimension, unit):
    value = dimension.value(unit)
    assert isinstance(value, int)
    assert dimension.low <= value <= dimension.high
    for whole in (dimension.low, value, dimension.high):
        assert dimension.value(dimension.unit(whole)) == whole
    assert dimension.unit(value - 0.5) - 1e-9 <= unit <= dimension.unit(value + 0.5) + 1e-9


def test_whole_numbers_are_equally_likely_on_a_linear_scale():
    dimension = Dimension(1, 4, integer=True)
    assert [dimension.value((i + 0.5) / 8) for i in range(8)] == [1, 1, 2, 2, 3, 3, 4, 4]


LEGAL, COUNT = Legal("[0, 1)"), Legal("[0, inf)")


@pytest.mark.parametrize(
    ("dimension", "side", "legal", "expected"),
    [
        (Dimension(1e-3, 1.0, "log"), "high", Legal("(0, inf)"), Dimension(1e-3, 31.6, "log")),
        (Dimension(1e-3, 1.0, "log"), "low", Legal("(0, inf)"), Dimension(3.16e-5, 1.0, "log")),
        (Dimension(0.9, 0.99, "reverse_log"), "high", LEGAL, Dimension(0.9, 1 - 0.00316, "reverse_log")),
        (Dimension(0.9, 0.99, "reverse_log"), "low", LEGAL, Dimension(1 - 0.316, 0.99, "reverse_log")),
        (Dimension(0.5, 0.99, "reverse_log"), "low", LEGAL, Dimension(0.0, 0.99, "reverse_log", hard=("low",))),
        (Dimension(0.4, 0.9), "high", LEGAL, Dimension(0.4, 0.95)),  # 1 is excluded: half the way
        (Dimension(0.4, 0.9), "high", Legal("[0, 1]"), Dimension(0.4, 1.0, hard=("high",))),
        (Dimension(10, 100, "log", integer=True), "high", COUNT, Dimension(10, 316, "log", integer=True)),
        (Dimension(2, 99, "log", integer=True), "low", COUNT, Dimension(1, 99, "log", integer=True, hard=("low",))),
        (Dimension(3, 6, integer=True), "low", COUNT, Dimension(1, 6, integer=True)),
        (Dimension(25, 1000, integer=True), "low", Legal("(0, inf)"), Dimension(1, 1000, integer=True, hard=("low",))),
        (Dimension(2, 8, integer=True), "high", Legal("[0, 10)"), Dimension(2, 9, integer=True, hard=("high",))),
        (Dimension(2, 8, integer=True), "high", Legal("[0, 9.5]"), Dimension(2, 9, integer=True, hard=("high",))),
    ],
)
def test_widened(dimension, side, legal, expected):
    found = dimension.widened(side, 1.5, legal)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.hard, found.scale, found.integer) == (expected.hard, expected.scale, expected.integer)


@given(dimensions, st.sampled_from(["low", "high"]), st.floats(1.1, 4))
def test_a_widened_box_holds_the_old_one(dimension, side, factor):
    found = dimension.widened(side, factor, Legal("(-inf, inf)"))
    tolerance = 5e-3 * (1 + abs(dimension.low) + abs(dimension.high))
    assert found.low <= dimension.low + tolerance
    assert found.high >= dimension.high - tolerance


@given(dimensions, st.sampled_from(["low", "high"]), st.floats(1.1, 4), st.floats(0, 1))
def test_units_of_a_wider_range_give_its_values(dimension, side, factor, share):
    wider = dimension.widened(side, factor, Legal("(-inf, inf)"))
    low, high = dimension.box(wider)
    value = dimension.value(round(low + share * (high - low), 6))
    assert wider.low <= value <= wider.high or dimension.low <= value <= dimension.high
    assert dimension.box(dimension) == (0, 1)


@pytest.mark.parametrize(
    ("dimension", "side", "legal", "end"),
    [
        (Dimension(0.4, 0.9), "high", Legal("[0, 1]"), 1.0),
        (Dimension(0.9, 0.99, "reverse_log"), "high", LEGAL, 1 - 0.00316),
        (Dimension(2, 8, integer=True), "high", COUNT, 11),
        (Dimension(10, 100, "log", integer=True), "low", COUNT, 3),
    ],
)
def test_the_outermost_candidate_is_legal_and_near_the_end_of_the_wider_range(dimension, side, legal, end):
    low, high = dimension.box(dimension.widened(side, 1.5, legal))
    value = dimension.value(round(high if side == "high" else low, 6))
    assert value in legal
    assert value == pytest.approx(end, rel=1e-3)


def test_a_side_where_nothing_legal_lies_beyond_is_hard():
    assert Dimension(0.0, 0.9).hardened(LEGAL).hard == ("low",)
    assert Dimension(0.5, 1.0, hard=("high",)).hardened(Legal("(0, 1]")).hard == ("high",)
    assert Dimension(1, 9, "log", integer=True).hardened(Legal("(-inf, inf)")).hard == ("low",)
    assert Dimension(choices=(1.0,)).hardened(LEGAL) == Dimension(choices=(1.0,))


@given(st.one_of(dimensions, integers(), choices))
@example(Dimension(0.0, 0.99, "reverse_log", hard=("low", "high")))
def test_a_dimension_survives_its_record(dimension):
    assert Dimension.parse(json.loads(json.dumps(dimension.to_dict()))) == dimension


@pytest.mark.parametrize(
    ("config", "dimension"),
    [
        (0.5, Dimension(choices=(0.5,))),
        (3, Dimension(choices=(3.0,))),
        ([0, 0.01, 0.1], Dimension(choices=(0, 0.01, 0.1))),
        ({"choices": [1, 2]}, Dimension(choices=(1, 2))),
        ({"low": 0, "high": 1, "choices": [1, 2]}, Dimension(choices=(1, 2))),  # an override of a range
        ({"low": 0, "high": 1}, Dimension(0, 1)),
        ({"low": 0, "high": 1, "hard": "low"}, Dimension(0, 1, hard=("low",))),
        ({"low": 0.1, "high": 1, "scale": "log", "hard": None}, Dimension(0.1, 1, "log")),
    ],
)
def test_parse(config, dimension):
    assert Dimension.parse(config) == dimension


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, ["range, a list of choices or a number", "None"]),
        (True, ["range, a list of choices or a number", "True"]),
        (math.nan, ["nan"]),
        ([], ["choices", "[]"]),
        ([0.1, "a"], ["choices", "'a'"]),
        ([0.1, math.inf], ["choices", "inf"]),
        ({}, ["`low` and `high` must be numbers", "None"]),
        ({"low": 1}, ["`low` and `high` must be numbers", "high=None"]),
        ({"low": "1", "high": 2}, ["`low` and `high` must be numbers", "low=1"]),
        ({"low": 1, "high": math.inf}, ["`low` and `high` must be numbers", "inf"]),
        ({"low": 3, "high": 1}, ["`low < high` must hold", "low=3, high=1"]),
        ({"low": 1, "high": 1}, ["`low < high` must hold", "low=1, high=1"]),
        ({"low": 0, "high": 1, "scale": "log"}, ["`low > 0` must hold", "low=0"]),
        ({"low": 0, "high": 1, "scale": "reverse_log"}, ["`high < 1` must hold", "high=1"]),
        ({"low": 0, "high": 1, "scale": "cubic"}, ["`scale` must be one of", "'cubic'"]),
        ({"low": 0.5, "high": 4, "integer": True}, ["`integer` range", "low=0.5"]),
        ({"low": 0, "high": 0.9, "integer": True, "scale": "reverse_log"}, ["`integer` range", "reverse_log"]),
        ({"low": 0, "high": 1, "hard": ["left"]}, ["`hard` must name sides", "left"]),
        ({"low": 0, "hgih": 1}, ["unknown key 'hgih'", "did you mean 'high'?"]),
    ],
)
def test_a_refusal_names_the_parameter_the_rule_and_the_value(config, words):
    with pytest.raises(ValueError) as refusal:
        parse_space({"learning_rate": config})
    assert [word for word in ["search.space.learning_rate", *words] if word not in str(refusal.value)] == []


def test_a_dimension_is_a_range_or_choices():
    with pytest.raises(ValueError, match="either `choices` or `low` and `high`"):
        Dimension(0, 1, choices=(0.5,))


def test_coordinates_belong_to_names_in_sorted_order():
    space = parse_space({"b": {"low": 0, "high": 10}, "a": {"low": 0, "high": 1}})
    assert values(space, [0.25, 0.5]) == {"a": 0.25, "b": 5.0}
    with pytest.raises(ValueError):
        values(space, [0.5])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("[0, 1]", "(0, 1]", "(0, 1]"),
        ("[0, inf)", "[0, 1]", "[0, 1]"),
        ("(-inf, inf)", "[1, inf)", "[1, inf)"),
        ("[0, 1]", "[0, 1)", "[0, 1)"),
    ],
)
def test_what_two_intervals_accept(one, other, both):
    assert Legal(one) & Legal(other) == Legal(other) & Legal(one) == Legal(both)


def test_names_are_choices():
    chosen = Dimension.parse(["constant", "cosine"])
    assert [chosen.value(unit) for unit in (0, 0.49, 0.5, 0.99)] == ["constant", "constant", "cosine", "cosine"]
    assert [chosen.unit(name) for name in chosen.choices] == [0.25, 0.75]
    assert Dimension.parse(chosen.to_dict()) == chosen
    assert Dimension.parse("cosine").choices == ("cosine",)


def test_choices_of_truth_values_are_numbers():
    with pytest.raises(ValueError, match=r"but got \[True, False\]; write 1 for true and 0 for false\."):
        Dimension(choices=(True, False))
    with pytest.raises(ValueError, match=r"but got \[\]\."):
        Dimension(choices=())
