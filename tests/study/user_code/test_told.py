"""What is told of an unexpected error."""

import errno
import os

import pytest

from study.user_code import faults

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


@pytest.mark.parametrize("error", [ValueError(), AssertionError(""), SystemExit()])
def test_an_error_without_a_text_is_named_alone(error):
    assert faults.said(error) == type(error).__name__
