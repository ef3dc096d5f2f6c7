"""Which files count as the user's own: packages that `pip install --target` put into a folder of any name do not."""

import pytest

from study.config.code_fingerprint import code
from workloads.user_code.ownership import is_users

RECORD = """package/__init__.py,sha256=0,8
package/deep/layers.py,sha256=0,0
single.py,,
"with, comma.py",,
package-1.0.dist-info/RECORD,,
"""
FILES = {
    "package/__init__.py": False,
    "package/deep/layers.py": False,
    "single.py": False,
    "with, comma.py": False,
    "mine.py": True,  # beside the packages
    "package/mine.py": True,
    "mine/single.py": True,
}


@pytest.fixture
def target(tmp_path, monkeypatch):
    folder = tmp_path / "libraries"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "package-1.0.dist-info").mkdir()
    (folder / "package-1.0.dist-info/RECORD").write_text(RECORD)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(("name", "users"), FILES.items())
def test_files_that_a_package_lists_are_installed(target, name, users):
    assert is_users(str(target / name)) is users


def test_a_symbolic_link_to_an_installed_file_is_installed(target, tmp_path):
    (tmp_path / "link.py").symlink_to(target / "single.py")
    assert not is_users(str(tmp_path / "link.py"))


def test_packages_in_a_folder_of_any_name_are_not_fingerprinted(target):
    (target / "mine.py").write_text("import package.deep.layers, single\n")
    assert code(["mine"]).keys() == {"code", "code mine.py"}
