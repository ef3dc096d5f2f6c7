"""Ctrl-C neither gets lost nor spoils what it interrupts."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from helpers.processes import heed_interrupts

from study.devices import signals

# In a process of its own: SciPy loads its direction numbers once in a process.
AT_THE_FIRST_POINT = """
    import os, signal
    import numpy as np
    from study.search.points import _sobol

    signal.signal(signal.SIGINT, signal.default_int_handler)
    load = np.load

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return load(*args, **kwargs)

    np.load = interrupted
    try:
        _sobol(0, 3, 2)
    except KeyboardInterrupt:
        np.load = load
        print("interrupted", len({tuple(point) for point in _sobol(0, 3, 2)}))
"""


@pytest.mark.slow
def test_an_interrupt_while_scipy_loads_its_sobol_numbers_is_heeded():
    run = [sys.executable, "-c", textwrap.dedent(AT_THE_FIRST_POINT)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["interrupted", "4"]
    assert not done.stderr


# Sends the signal while `study.__main__` imports the verbs.
AT_AN_IMPORT = """
    import os, runpy, signal, sys

    class Sender:
        def find_spec(self, name, *_):
            if name == "study.commands":
                os.kill(os.getpid(), int(sys.argv.pop()))

    sys.meta_path.insert(0, Sender())
    runpy.run_module("study", run_name="__main__", alter_sys=True)
"""


ENDS = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_an_end_during_the_imports_has_the_status_of_an_interrupt(end):
    run = [sys.executable, "-c", textwrap.dedent(AT_AN_IMPORT), "list", str(int(end))]
    done = subprocess.run(run, capture_output=True, text=True, check=False, preexec_fn=heed_interrupts)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
def test_nohup_is_heeded():
    run = [sys.executable, "-c", textwrap.dedent(AT_AN_IMPORT), "list", str(int(signal.SIGHUP))]
    done = subprocess.run(["nohup", *run], capture_output=True, text=True, check=True)
    assert "workloads" in done.stdout


@contextmanager
def raising(number):
    """Answer a signal by KeyboardInterrupt in this block."""
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDS])
def test_postponed_until_the_end_of_the_block(number):
    reached = []

    def interrupted():
        with signals.postponed():
            os.kill(os.getpid(), number)
            reached.append(True)

    with raising(number):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert reached
        assert signal.getsignal(number) is signal.default_int_handler


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_terminal_sends_is_ignored_by_processes_that_start_in_the_block(number):
    show = f"import signal; print(signal.getsignal({int(number)}) is signal.SIG_IGN)"
    with raising(number):
        with signals.ignored():
            done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
        assert signal.getsignal(number) is signal.default_int_handler
    assert done.stdout == "True\n"


ON_A_TERMINAL = """
    import signal
    from study.devices import signals

    signal.signal(signal.SIGHUP, signals.interrupt)
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise SystemExit(130)
"""


def test_nothing_is_written_to_a_terminal_that_closed():
    """A write would raise an error in place of the interrupt."""
    terminal, held = pty.openpty()
    script = [sys.executable, "-c", textwrap.dedent(ON_A_TERMINAL)]
    process = subprocess.Popen(script, stdin=subprocess.DEVNULL, stdout=held, stderr=held)
    os.close(held)
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130


def test_an_interrupt_during_the_imports_shows_no_traceback(tmp_path):
    slow = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich/__init__.py").write_text(slow)  # stands for an import during which the user presses Ctrl-C
    command = [
        sys.executable,
        "-c",
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy._run_module_as_main('study')",
    ]
    done = subprocess.run([*command, tmp_path], capture_output=True, text=True, preexec_fn=heed_interrupts)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("block", [signals.ignored, signals.postponed])
def test_in_other_threads_than_the_main_one_nothing_is_done(block):
    def inside():
        with block():
            return signal.getsignal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() is before


WAITING = """
import os, threading
from study.devices import signals
threading.Thread(target=threading.Event().wait, args=({wait},), daemon={daemon}, name="prefetch").start()
signals.tell_of_threads(lambda said: os.write(2, said.encode()), {seconds})
"""


@pytest.mark.parametrize(
    ("wait", "daemon", "seconds", "told"), [(1, False, 0.05, True), (60, True, 0, False), (0, False, 0.05, False)]
)
def test_a_thread_that_keeps_a_command_from_ending_is_named(wait, daemon, seconds, told):
    script = WAITING.format(wait=wait, daemon=daemon, seconds=seconds)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ("your code still runs prefetch: let the thread end" in done.stderr) == told
