"""What is told of an unexpected error."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from study.devices.distributed import lost
from study.devices.memory import out_of_memory
from study.errors import unwritable
from study.store.atomic import Stopped, make_folder
from study.user_code import faults
from workloads.user_code.errors import summary

ROOT = Path(__file__).parents[3]
REASONS = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES")


@pytest.mark.parametrize("path", [None, "/disk/file"])
@pytest.mark.parametrize("reason", REASONS)
def test_an_error_of_a_disk_is_no_fault_of_the_program(reason, path):
    code = getattr(errno, reason)
    said = faults.told(OSError(code, os.strerror(code), path))
    assert said.startswith(
        f"cannot read or write {path or 'a file'}: {os.strerror(code)}. Make room or change its perm"
    )
    assert "layers of the model" not in said


@pytest.mark.parametrize(("reason", "cure"), [("ENAMETOOLONG", "Choose a shorter name"), ("ELOOP", "remove one")])
def test_an_error_of_a_path_is_told_with_its_cure(reason, cure):
    code = getattr(errno, reason)
    said = faults.told(OSError(code, os.strerror(code), "/x"))
    assert said.startswith(f"cannot use /x: {os.strerror(code)}. ")
    assert cure in said
    assert "layers of the model" not in said


def test_other_errors_may_be_faults_of_the_program():
    assert "please report it" in faults.told(OSError("no errno"))
    assert "please report it" in faults.told(BlockingIOError(errno.EAGAIN, "try again"))


@pytest.mark.parametrize("reason", ["EBADF", "ENOTSOCK"])
def test_a_file_that_a_users_code_closed_is_no_fault_of_the_program(reason):
    code = getattr(errno, reason)
    said = faults.told(OSError(code, os.strerror(code)))
    assert "A file of this process is closed: look for os.close()" in said
    assert "please report it" not in said


@pytest.mark.parametrize("reason", ["EMFILE", "ENFILE"])
def test_too_many_open_files_are_told_with_their_limit(reason):
    error = OSError(getattr(errno, reason), os.strerror(getattr(errno, reason)))
    for text in (faults.told(error), unwritable("x", error)):
        assert "Raise the limit of open files (ulimit -n), or choose fewer engine.workers" in text
        assert "please report it" not in text
        assert "Make room" not in text


def test_a_link_to_nowhere_in_the_place_of_a_folder_has_a_cure(tmp_path):
    (tmp_path / "results").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Stopped, match="Remove the file or the link to nowhere in the place of a folder, and run"):
        make_folder(tmp_path / "results")


ENDS = {
    "os._exit(0)": "SystemExit: 0",
    "from os import _exit; _exit(3)": "SystemExit: 3",
    "os.fork()": "RuntimeError: os.fork() would run the sweep twice",
    "subprocess.run(['true'], preexec_fn=int)": "",
    "multiprocessing.get_context('fork').Process(target=os._exit, args=(7,)).start()": "",
    "multiprocessing.get_context('fork').Process(target=lambda: os._exit(7)).start()": "",
}


@pytest.mark.parametrize(("line", "said"), ENDS.items())
def test_what_would_end_or_double_a_process_without_a_word_raises(tmp_path, line, said):
    (tmp_path / "mine.py").write_text(f"import multiprocessing, os, subprocess\n{line}\nprint('goes on')\n")
    script = (
        "from study.user_code import faults\nfaults.guard_process()\n"
        "try:\n    import mine\nexcept BaseException as error:\n    print(faults.told(error))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    expected = f"your code fails: {said}" if said else "goes on"
    assert done.stdout.startswith(expected)
    assert not said or f"(mine.py, line 2: {line})" in done.stdout.replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("error", [ValueError(), AssertionError(""), SystemExit()])
def test_an_error_without_a_text_is_named_alone(error):
    assert summary(error) == type(error).__name__


class Odd(Exception):
    def __init__(self, text):
        super().__init__("as it was raised")
        self.text = text

    def __str__(self):
        return self.text if isinstance(self.text, str) else self.text()


GROUP = ExceptionGroup("two downloads failed", [ValueError("no host"), KeyError("b")])
TEXTS = {
    "raises": (Odd(lambda: 1 / 0), "Odd"),
    "returns nothing": (Odd(lambda: None), "Odd"),
    "several lines": (Odd("one\n  two\r\n\nthree.\n"), "Odd: one two three"),
    "colours": (Odd("\x1b[1;31mred\x1b[0m"), "Odd: red"),
    "what a terminal obeys": (Odd("a\x07b\x08\x00c\x9b2Jd\u202ee"), "Odd: a b c 2Jd e"),
    "a group": (GROUP, "ExceptionGroup: two downloads failed (2 sub-exceptions); the first: ValueError: no host"),
    "very long": (Odd("x" * 10**6), f"Odd: {'x' * 595} … {'x' * 300}"),
}


@pytest.mark.parametrize(("error", "line"), TEXTS.values(), ids=TEXTS)
def test_an_error_is_told_in_one_line_whatever_its_text(error, line):
    assert summary(error) == line
    assert line in faults.told(error)
    assert not out_of_memory(error)
    assert not lost(error)
