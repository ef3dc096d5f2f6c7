"""Write the pages of docs/gallery, and link or draw their figures, from the files in results/published.

Run `python docs/gallery.py` after a change of a published study. A test fails if a page is stale.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from analysis.claims import registry
from analysis.claims.settle import settle
from analysis.figures import canvas, formats
from analysis.figures.gallery.profiles import profiles
from analysis.gallery import gather, standings, studies
from analysis.gallery.pages import Study
from analysis.gallery.pages import pages as written

DOCS = Path(__file__).parent
PUBLISHED = Path("results/published")
"""Relative to the root of the repository, in which this script runs."""


def pages() -> tuple[dict[str, str], gather.Gathered]:
    """File name -> text of each page, and what they are made of."""
    folders = sorted(path for path in PUBLISHED.iterdir() if path.is_dir())
    found = gather.gather(folders)
    judged = registry.judge(found.evidence)
    settled = {each.letter: settle(each, found.evidence, found.searches) for each in judged}
    settled = {letter: each for letter, each in settled.items() if each.advice}
    each = [Study(studies.read(folder), gather.one(folder)) for folder in folders]
    return written(each, found.evidence, judged, settled), found


def main() -> None:
    made, found = pages()
    (DOCS / "gallery").mkdir(exist_ok=True)
    for path in {*(DOCS / "gallery").glob("*.md")} - {DOCS / "gallery" / name for name in made}:
        path.unlink()
    for name, text in made.items():
        (DOCS / "gallery" / name).write_text(text)
    for folder in sorted(path for path in PUBLISHED.iterdir() if path.is_dir()):
        if not (link := DOCS / "figures" / folder.name).exists():
            link.symlink_to(Path("../..") / folder / "figures", target_is_directory=True)
    table = standings.profile(standings.fewest(found.evidence))
    (DOCS / "figures/gallery").mkdir(exist_ok=True)
    figure = canvas.draw(partial(profiles, table=table))
    (DOCS / "figures/gallery/performance_profiles.svg").write_bytes(formats.svg(figure))


if __name__ == "__main__":
    main()
