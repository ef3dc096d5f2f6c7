"""The explorer in Chromium: mouse and keyboard, widths and colour schemes; no error, no request, no need of scripts."""

import json
from math import log10
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import CHROMIUM, Browser

from analysis.load import load_study
from analysis.report import explorer
from analysis.report.build import Asked, tables
from analysis.report.explorer.data import payload
from analysis.report.page import ReportData, write_report

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]
STUDIES = Path(__file__).parents[4] / "results/published/mlp_digits/studies/mlp_digits"
SIZES = (16, 64, 256)
ROWS = "[...document.querySelectorAll('[data-part=trials] tbody tr')]"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the page of six studies, the data of its explorer)."""
    studies = [load_study(STUDIES / name / str(size)) for name in ("momentum", "sgd") for size in SIZES]
    found = tables(studies, studies, Asked())
    report = ReportData("Digits", ["It scales."], [], {}, [], "", explorer=explorer.block(found))
    return write_report(tmp_path_factory.mktemp("page"), report), payload(found)["panels"][0]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("chrome"))
    yield browser
    browser.close()


@pytest.fixture
def page(made, browser):
    """The page at 1,400 px; in the end, nothing was logged and nothing but the page was asked for."""
    browser.open(made[0])
    yield browser
    assert browser.problems == []
    assert browser.requests == [made[0].as_uri()]


def part(name, rest=""):
    return f"document.querySelector('[data-part={name}]'){rest}"


def box(page, name, inside=".u-over"):
    """Left, top, width and height of the plotting area of a chart, scrolled into view."""
    page.ask(part(name, ".scrollIntoView({block: 'center'})"))
    rect = part(name, f".querySelector('{inside}').getBoundingClientRect()")
    return page.ask(f"(({{ left, top, width, height }}) => [left, top, width, height])({rect})")


def share(value, values):
    """The place of a value on a logarithmic axis with 5 % of room at both ends."""
    low, high = log10(min(values)), log10(max(values))
    return (log10(value) - low + 0.05 * (high - low)) / (1.1 * (high - low))


def at_point(page, panel, optimizer, size):
    """Where a point of S(B) stands on the screen."""
    studies = [study for each in panel["optimizers"] for study in each["studies"]]
    [mine] = [each for each in panel["optimizers"] if each["name"] == optimizer]
    [steps] = [study["steps"] for study in mine["studies"] if study["batch_size"] == size]
    left, top, width, height = box(page, "scaling")
    x, y = share(size, SIZES), share(steps, [study["steps"] for study in studies])
    return left + x * width, top + (1 - y) * height, steps


def trials_shown(page):
    return page.ask(f"{ROWS}.map(row => Number(row.dataset.trial))")


def study_of(panel, optimizer, size):
    [mine] = [each for each in panel["optimizers"] if each["name"] == optimizer]
    return next(study for study in mine["studies"] if study["batch_size"] == size)


def test_a_point_of_s_of_b_shows_its_trials(page, made):
    for optimizer, size in (("sgd", 64), ("momentum", 256)):
        x, y, steps = at_point(page, made[1], optimizer, size)
        page.mouse("Moved", x + 3, y - 3)
        assert page.ask(part("about", ".textContent")).startswith(f"{optimizer}, batch size {size}: 20 trials.")
        assert page.ask(part("tip", ".textContent")) == f"{optimizer}, batch size {size}\n{steps} steps"
        assert page.ask(part("study", ".selectedOptions[0].textContent")) == f"{optimizer}, {size}"
        assert trials_shown(page) == study_of(made[1], optimizer, size)["trial"]
        assert page.ask(f"{ROWS}.map(row => row.className)")[0] == "best"


def test_a_click_keeps_a_batch_size(page, made):
    x, y, _ = at_point(page, made[1], "sgd", 64)
    page.click(x, y)
    x, y, _ = at_point(page, made[1], "momentum", 256)
    page.mouse("Moved", x, y)
    assert page.ask(part("said", ".textContent")).startswith("sgd, batch size 64.")
    page.click(x, y)
    assert page.ask(part("said", ".textContent")).startswith("momentum, batch size 256.")


@pytest.mark.parametrize("name", ["curves", "parallel", "map"])
def test_a_trial_is_found_in_all_charts_and_in_the_table(page, name):
    left, top, width, height = box(page, name)
    before = page.ask(part("curves", ".querySelector('canvas').toDataURL()"))
    for step in range(1, 60):
        page.mouse("Moved", left + width * (step * 0.37 % 1), top + height * (step * 0.23 % 1))
        if page.ask(part("tip", ".hidden")) is False:
            break
    said = page.ask(part("tip", ".textContent"))
    [found] = page.ask(f"{ROWS}.filter(row => row.className.includes('found')).map(row => row.dataset.trial)")
    assert said.startswith((f"Trial {found}:", f"Trial {found}, the fewest steps:"))
    assert page.ask(part("curves", ".querySelector('canvas').toDataURL()")) != before
    page.mouse("Moved", 1, 1)
    assert page.ask(part("tip", ".hidden")) is True


def test_conditions_and_outcomes_filter_the_trials(page, made):
    study = study_of(made[1], "momentum", 64)
    page.ask(part("filter", ".focus()"))
    page.type("learning_rate > 0.01, error < 0.15")
    rates = study["values"][0]
    kept = [
        t for t, rate, error in zip(study["trial"], rates, study["error"], strict=True) if rate > 0.01 and error < 0.15
    ]
    assert 0 < len(kept) < len(rates)
    assert trials_shown(page) == kept
    page.ask(part("filter", ".select()"))
    page.type("speed > 1")
    assert "must be a condition such as error < 0.1" in page.ask(part("refusal", ".textContent"))
    page.ask(part("filter", ".select()"))
    page.type("outcome = reached")
    assert page.ask(part("refusal", ".textContent")) == ""
    reached = [trial for trial, state in zip(study["trial"], study["state"], strict=True) if state == 0]
    assert trials_shown(page) == reached
    page.ask(part("states", ".querySelector('button').click()"))
    assert page.ask(part("states", ".querySelector('button').getAttribute('aria-pressed')")) == "false"
    assert trials_shown(page) == []


def test_an_optimizer_can_be_hidden(page):
    picture = part("scaling", ".querySelector('canvas').toDataURL()")
    before = page.ask(picture)
    page.ask(part("optimizers", ".querySelectorAll('button')[1].click()"))
    assert page.ask(part("optimizers", ".querySelectorAll('button')[1].getAttribute('aria-pressed')")) == "false"
    assert page.ask(picture) != before
    page.ask(part("optimizers", ".querySelectorAll('button')[1].click()"))
    assert page.ask(picture) == before


def test_dragging_along_an_axis_filters(page):
    left, top, width, height = box(page, "parallel")
    x = left + width * 0.2 / 3.7  # the first of four axes, from -0.2 to 3.5
    page.drag((x - 8, top + 0.3 * height), (x + 8, top + 0.6 * height))
    text = page.ask(part("filter", ".value"))
    assert text.startswith("learning_rate >= ")
    low, high = (float(condition.split()[-1]) for condition in text.split(","))
    rates = page.ask(f"{ROWS}.map(row => Number(row.cells[4].textContent))")
    assert rates
    assert all(low * 0.99 <= rate <= high * 1.01 for rate in rates)


def test_columns_sort_and_rows_take_the_focus(page, made):
    study = study_of(made[1], "momentum", 64)
    head = "document.querySelectorAll('[data-part=trials] thead button')[4]"
    for order in ("ascending", "descending"):
        page.ask(f"{head}.click()")
        assert page.ask(f"{head}.parentElement.getAttribute('aria-sort')") == order
        by_rate = sorted(zip(study["values"][0], study["trial"], strict=True), reverse=order == "descending")
        assert trials_shown(page) == [trial for _, trial in by_rate]
    page.ask(f"{ROWS}[2].focus()")
    assert page.ask(part("said", ".textContent")).startswith(f"momentum, batch size 64. Trial {by_rate[2][1]}")


def test_dragging_zooms_and_a_button_zooms_out(page):
    picture = part("curves", ".querySelector('canvas').toDataURL()")
    left, top, width, height = box(page, "curves")
    page.mouse("Moved", 1, 1)
    before = page.ask(picture)
    page.drag((left + 0.4 * width, top + 0.3 * height), (left + 0.8 * width, top + 0.8 * height))
    page.mouse("Moved", 1, 1)
    assert page.ask(picture) != before
    page.ask(part("whole", ".click()"))
    assert page.ask(picture) == before


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "columns"), [(1400, 2), (800, 1), (390, 1)])
def test_every_width_and_colour_scheme(page, made, width, columns, dark):
    page.open(made[0], width, dark)
    assert page.ask("document.documentElement.scrollWidth") <= width
    lefts = page.ask(
        "[...document.querySelectorAll('#explorer figure')].map(each => each.getBoundingClientRect().left)"
    )
    assert len({*lefts}) == columns
    wide = page.ask(
        "[...document.querySelectorAll('#explorer canvas')].map(each => each.getBoundingClientRect().width)"
    )
    assert len(wide) == 4
    assert min(wide) > 0.75 * width / columns
    before = page.ask(part("curves", ".querySelector('canvas').toDataURL()"))
    page.scheme(not dark)
    assert page.ask(part("curves", ".querySelector('canvas').toDataURL()")) != before


def test_the_bar_at_the_top_hides_no_link(page):
    page.ask("document.querySelector('nav').style.width = '120px'")
    assert page.ask("(bar => bar.scrollWidth <= bar.clientWidth)(document.querySelector('nav ul'))")


NUMBERS = {
    "number(0.9987)": "0.999",
    "number(0.9987, true)": "0.9987",
    "number(0.95)": "0.95",
    "number(1234)": "1,234",
    "round(10 ** Math.log10(1024))": "1,024",
    "round(10 ** Math.log10(0.95123))": "0.95123",
    "round(1 - 1e-7)": "0.9999999",
    "round('cosine_decay')": "cosine decay",
}


def test_only_momenta_are_written_by_their_distance_to_one(page):
    said = {call: page.ask(f"explorerCharts(document.getElementById('explorer')).{call}") for call in NUMBERS}
    assert said == NUMBERS


def test_neighbours_on_a_zoomed_axis_differ(page):
    said = page.ask(
        """(({ scale, round }) => {
          const axis = scale("log", [0.9, 0.99]);
          return axis.ticks(Math.log10(0.9512), Math.log10(0.9518), 7).map(place => round(axis.from(place)));
        })(explorerCharts(document.getElementById("explorer")))"""
    )
    assert len(said) > 3
    assert len({*said}) == len(said)


RECORD = """(() => {
  const usual = CanvasRenderingContext2D.prototype.strokeText;
  window.written = [];
  CanvasRenderingContext2D.prototype.strokeText = function (text, x, y) {
    const over = this.canvas.parentElement.querySelector('.u-over');
    const [box, inner] = [this.canvas, over].map(each => each.getBoundingClientRect());
    const wide = this.measureText(text).width / devicePixelRatio, start = inner.left - box.left;
    const left = x / devicePixelRatio - wide * { left: 0, center: .5, right: 1 }[this.textAlign];
    window.written.push([text, left - start + 8, start + inner.width + 8 - left - wide]);
    usual.call(this, text, x, y);
  };
  document.querySelector('[data-part=whole]').click();
})()"""
"""Draw the charts once more, and record each text in them with its distances in pixels to the edges that cut it off."""


@pytest.mark.parametrize("lowest", [0.1, 0.00001])
@pytest.mark.parametrize("width", [1400, 1200, 800, 400])
def test_charts_cut_no_text_off(browser, results, tmp_path, width, lowest):
    studies = results({8: [40, "missing", None], 16: [40, 50, None]})
    for study in studies:
        spread = np.geomspace(lowest, 100 * lowest, len(study.trials))
        for name in ("learning_rate", "momentum"):
            study.trials[name] = spread if name == "learning_rate" else np.linspace(0.5, 0.99, len(study.trials))
    found = tables(studies, studies, Asked())
    browser.open(write_report(tmp_path, ReportData("", [], [], {}, [], "", explorer=explorer.block(found))), width)
    browser.ask(RECORD)
    written = browser.ask("window.written")
    assert "not reached" in [text for text, *_ in written]
    assert [each for each in written if min(each[1:]) < 0] == []


def test_trials_without_a_curve_are_in_the_table(browser, results, tmp_path):
    studies = results({8: ["bad", "bad"], 16: [40, "missing", "bad"]})
    found = tables(studies, studies, Asked())
    browser.open(write_report(tmp_path, ReportData("", [], [], {}, [], "", explorer=explorer.block(found))))
    for option, said in (("0 0", "diverged diverged"), ("0 1", "reached diverged incomplete")):
        browser.ask(f"{part('study')}.value = '{option}', {part('study')}.dispatchEvent(new Event('change'))")
        assert browser.ask(f"{ROWS}.map(row => row.cells[1].textContent).join(' ')") == said
    assert browser.problems == []


def test_without_scripts_the_section_is_hidden(page, made):
    page.open(made[0], scripts=False)
    shown = "getComputedStyle(document.querySelector('#explorer')).display"
    assert page.tell("Runtime.evaluate", expression=shown)["result"]["value"] == "none"


def test_the_data_are_those_of_the_page(page, made):
    text = page.ask(part("data", ".textContent"))
    assert json.loads(text)["panels"] == json.loads(json.dumps([made[1]]))
