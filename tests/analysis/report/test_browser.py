"""The page in a browser: at every width and in both colour schemes the answer is on the first screen."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, Browser

from analysis.report.build import build

PUBLISHED = Path(__file__).parents[3] / "results/published"
QUIET = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
QUIET += " --disable-component-update --hide-scrollbars --enable-logging=stderr --virtual-time-budget=2000"
SIZES = {1400: 900, 800: 1000, 390: 844}
FRAME = (
    '<body style="margin:0"><iframe id="frame" style="border:0;width:{w}px;height:{h}px"></iframe><p id="said"></p>\n'
)
FRAME += '<script>onmessage = event => {{ said.textContent = event.data; }}; frame.src = "report.html";</script></body>'
MEASURE = """<script>
addEventListener("load", () => {
  const box = each => each.getBoundingClientRect();
  const spans = [...document.querySelectorAll("main > section")].map(section => {
    const parts = [...section.querySelectorAll("p, td, svg, li, pre, dd, figcaption, summary")].map(box)
      .filter(each => each.width > 0);
    return [section.id, Math.min(...parts.map(each => each.left)), Math.max(...parts.map(each => each.right))];
  });
  const first = document.querySelector(".first svg"), heading = document.querySelector("h1");
  document.querySelector("thead button").click();
  parent.postMessage(JSON.stringify({
    wide: document.documentElement.scrollWidth, inner: innerWidth, spans,
    heading: box(heading).bottom, figure: [box(first).top, box(first).bottom, box(first).width],
    answers: [...document.querySelectorAll(".answers tbody tr")].map(row => box(row).bottom),
    sorted: document.querySelector("thead button").parentElement.getAttribute("aria-sort"),
    paper: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
  }), "*");
});
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on the digits that measures itself, for a frame of any width."""
    folder = tmp_path_factory.mktemp("page")
    build([PUBLISHED / "mlp_digits"], folder)
    page = folder / "report.html"
    text = re.sub("script-src [^;]*", "script-src 'unsafe-inline'", page.read_text(), count=1)
    page.write_text(text.replace("</body>", f"{MEASURE}</body>"))
    return folder


def seen(folder, width, dark):
    """(measurements, what the browser logged) of the page in a frame of this width."""
    (folder / "frame.html").write_text(FRAME.format(w=width, h=SIZES[width]))
    scheme = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    command = [CHROMIUM, *QUIET.split(), *scheme, f"--user-data-dir={folder / 'chrome'}", f"--window-size={width},900"]
    done = subprocess.run(
        [*command, "--dump-dom", (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    said = re.search(r'<p id="said">(.*?)</p>', done.stdout)
    assert said is not None, done.stderr[-2000:]
    return json.loads(html.unescape(said[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (800, False), (390, False), (390, True)])
def test_the_first_screen(folder, width, dark):
    found, logged = seen(folder, width, dark)
    assert logged == []
    assert found["inner"] == width
    assert found["wide"] <= width
    assert found["heading"] < SIZES[width] / 3
    top, bottom, wide = found["figure"]
    assert top < SIZES[width] / 3
    assert bottom < SIZES[width]
    assert wide > 0.4 * width
    assert found["sorted"] == "ascending"
    light = sum(map(int, re.findall(r"\d+", found["paper"])[:3])) > sum(map(int, re.findall(r"\d+", found["ink"])[:3]))
    assert light is not dark
    if width == 1400:
        assert max(found["answers"]) < SIZES[width]
        for name, left, right in found["spans"]:
            assert right - left > 0.6 * width, name


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_only_the_scripts_of_the_page_run(tmp_path):
    """Those of the page run without a complaint; one that was added to the page does not."""
    build([PUBLISHED / "mlp_digits"], tmp_path)
    page = tmp_path / "report.html"
    page.write_text(page.read_text().replace("</body>", '<script>document.title = "added";</script></body>'))
    command = [CHROMIUM, *QUIET.split(), f"--user-data-dir={tmp_path / 'chrome'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<title>mlp_digits" in done.stdout
    (complaint,) = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert "violates the following Content Security Policy" in complaint


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_answer_on_three_optimizers_fits_at_every_width(tmp_path):
    build([PUBLISHED / "fc_mnist_128"], tmp_path)
    browser = Browser(tmp_path / "chrome")
    try:
        for width in (360, 390, 640, 800, 1000, 1090, 1200, 1300, 1400, 1920):
            browser.open(tmp_path / "report.html", width)
            assert browser.ask("document.documentElement.scrollWidth") <= width
            cells = "[...document.querySelectorAll('.answers td, .answers small')]"
            assert browser.ask(f"Math.max(...{cells}.map(each => each.getBoundingClientRect().right))") <= width
            stacked = f"{cells}.map(each => [getComputedStyle(each).display, getComputedStyle(each).borderTopWidth])"
            assert all(border == "0px" for shown, border in browser.ask(stacked) if shown == "block"), width
    finally:
        browser.close()


SORTED = """[...document.querySelectorAll('figure.table')].flatMap(figure => {
  const heads = [...figure.querySelectorAll('thead button')];
  return heads.map((head, place) => {
    head.click();
    return [head.textContent, [...figure.querySelectorAll('tbody tr')].map(row => row.cells[place].textContent)];
  });
})"""
FIRST = re.compile(r"(?:above |below |[≥≤±] ?)?(-?[\d,.]+)")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_columns_sort_by_numbers_not_by_digits(tmp_path):
    build([PUBLISHED / "fc_mnist_128"], tmp_path)
    browser, seen = Browser(tmp_path / "chrome"), {}
    try:
        browser.open(tmp_path / "report.html")
        for name, texts in browser.ask(SORTED):
            found = [FIRST.match(text) for text in texts if text != "–"]
            if name != "batch" and all(found) and not {"µs", "min", "h"} & set(" ".join(texts).split()):
                seen[name] = [float(each[1].replace(",", "")) for each in found if each]
                assert seen[name] == sorted(seen[name]), name
    finally:
        browser.close()
    assert {"95 % interval", "95 % of resamples", "tuned, fresh seeds"} <= set(seen)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_no_table_is_wider_than_paper(tmp_path):
    """Else a browser shrinks the text of all pages until the table fits, too small to read."""
    build([PUBLISHED / "fc_mnist_128"], tmp_path)
    browser, paper = Browser(tmp_path / "chrome"), 673  # A4 without margins, in pixels
    try:
        browser.open(tmp_path / "report.html", paper)
        browser.tell("Emulation.setEmulatedMedia", media="print")
        browser.ask("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        wide = browser.ask("[...document.querySelectorAll('main *')].map(e => e.getBoundingClientRect().right)")
        assert max(wide) < 1.1 * paper
        answers = browser.ask("document.querySelector('.answers').getBoundingClientRect().bottom")
        assert answers < 1000  # on the first page
    finally:
        browser.close()
