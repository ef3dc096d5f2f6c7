"""A part of a study has one process: who holds a claim, for how long, and who may take it over."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.fused import partly
from helpers.processes import wait_until

from study.__main__ import main
from study.store import claims
from study.store.atomic import StoreError
from study.store.claims import STALE, WHOLE, Held, Shard, claimed, refuse_held

HERE = f"process {os.getpid()} on {socket.gethostname()}"


def of_another_machine(folder, shard=WHOLE, age=0, number=1):
    """The claim of a process whose lock does not reach this machine, touched so many seconds ago."""
    path = folder / f".claim.{shard}.{number}"
    path.write_text(json.dumps({"pid": 7, "host": "another", "boot": "another"}))
    os.utime(path, (time.time() - age,) * 2)
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def assert_held(folder, shard=WHOLE, match=None):
    with pytest.raises(Held, match=match), claimed(folder, shard):
        pytest.fail("claimed twice")


def test_shards_part_the_trials():
    shards = [Shard(index, 3) for index in range(3)]
    assert [[i for i in range(7) if i in shard] for shard in shards] == [[0, 3, 6], [1, 4], [2, 5]]
    assert all(i in WHOLE for i in range(7))


def test_a_part_has_one_process(tmp_path):
    for _ in range(2):  # given up again
        with claimed(tmp_path / "study"):
            refusal = f"study is being worked on by {HERE}; wait for it or choose another"
            assert_held(tmp_path / "study", match=refusal)
            with claimed(tmp_path / "other"):
                pass
        assert names(tmp_path / "study") == []


def test_parts_of_one_size_are_claimed_apart(tmp_path):
    with claimed(tmp_path, Shard(0, 2)), claimed(tmp_path, Shard(1, 2)):
        for shard in (Shard(0, 2), Shard(1, 2), WHOLE, Shard(1, 3)):
            assert_held(tmp_path, shard)
    with claimed(tmp_path, WHOLE):
        assert_held(tmp_path, Shard(0, 2))


HOLDER = """
import sys
from pathlib import Path
from study.store.claims import claimed

with claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", partly([True, False], 2))
def test_a_claim_ends_with_its_process(tmp_path, killed):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert_held(tmp_path, match=f"by process {process.pid} on ")
        if killed:
            process.kill()
        else:
            process.stdin.close()
        assert process.wait() == (-9 if killed else 0)
    with claimed(tmp_path) as claim:  # at once
        assert names(tmp_path) == [claim.path.name]
        assert claim.number == (2 if killed else 1)


@pytest.mark.parametrize("shard", [WHOLE, Shard(1, 4)])
def test_a_claim_that_nobody_touched_for_long_is_taken_over(tmp_path, shard):
    of_another_machine(tmp_path, shard, age=STALE + 1)
    with claimed(tmp_path, shard) as claim:
        assert names(tmp_path) == [f".claim.{shard}.2"] == [claim.path.name]


@pytest.mark.slow
def test_a_whole_study_that_another_machine_may_work_on_is_waited_for(tmp_path):
    of_another_machine(tmp_path, age=STALE - 2)
    start = time.monotonic()
    with claimed(tmp_path):
        assert 1 < time.monotonic() - start < 30


def test_another_machine_that_is_heard_of_lives(tmp_path):
    path = of_another_machine(tmp_path, age=STALE - 60)
    touch = threading.Timer(0.2, os.utime, [path])
    touch.start()
    assert_held(tmp_path, match="process 7 on another")
    touch.join()


def test_a_shard_of_another_machine_is_left_alone_at_once(tmp_path):
    of_another_machine(tmp_path, Shard(0, 2))
    start = time.monotonic()
    assert_held(tmp_path, Shard(0, 2))
    assert time.monotonic() - start < 5


def test_a_study_that_is_held_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("study.whole_sweep.costs.workers_for", lambda *_: pytest.fail("measured first"))
    folder = tmp_path / "studies/mlp_digits/momentum/64"
    with claimed(folder, Shard(0, 2)):
        assert main(["sweep", "batch_size=32,64", f"results={tmp_path}"]) == 2
    assert f"{folder} is being worked on by {HERE}" in capsys.readouterr().err.replace("\n", " ")
    of_another_machine(folder)
    refuse_held(folder)  # which may be dead: that is waited for, once it is the study's turn


def test_claims_are_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT", 0.05)
    with claimed(tmp_path) as claim:
        os.utime(claim.path, (0, 0))
        wait_until(lambda: claim.path.stat().st_mtime > time.time() - 60)


def test_who_was_taken_for_dead_stops_before_it_writes(tmp_path):
    with claimed(tmp_path) as claim:
        claim.check()
        of_another_machine(tmp_path, Shard(1, 2), number=9)  # another part
        claim.check()
        of_another_machine(tmp_path, number=2)
        with pytest.raises(StoreError, match=f"{tmp_path} was taken over by another process"):
            claim.check()


def test_a_folder_that_was_moved_is_not_called_taken_over(tmp_path):
    with claimed(tmp_path / "16") as claim:
        (tmp_path / "16").rename(tmp_path / "moved")
        with pytest.raises(StoreError, match=f"{tmp_path / '16'} is no longer there: it was moved, renamed or removed"):
            claim.check()
    with claimed(tmp_path / "moved"):  # continues there
        assert not (tmp_path / "16").exists()


def test_where_a_file_system_has_no_locks_claims_age(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(claims.fcntl, "flock", refuse)
    shard = Shard(0, 2)
    with claimed(tmp_path, shard) as claim:
        assert_held(tmp_path, shard)
        os.utime(claim.path, (0, 0))
        with claimed(tmp_path, shard), pytest.raises(StoreError, match="taken over"):
            claim.check()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_claim_without_a_name_is_judged_by_its_age(tmp_path, content):
    path = of_another_machine(tmp_path, Shard(0, 2))
    path.write_text(content)
    assert_held(tmp_path, Shard(0, 2), match=r"process \? on another machine")


@pytest.mark.parametrize("dead", [0, 1])
def test_of_many_that_come_at_once_one_gets_it(tmp_path, dead):
    if dead:
        of_another_machine(tmp_path, Shard(0, 2), age=STALE + 1)
    start, held, refused = threading.Barrier(8), [], []
    leave = threading.Event()

    def take():
        start.wait()
        try:
            with claimed(tmp_path, Shard(0, 2)) as claim:
                held.append(claim)
                leave.wait()
        except Held as error:
            refused.append(error)

    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(take)
        wait_until(lambda: len(held) + len(refused) == 8)
        leave.set()
    assert len(held) == 1
    assert names(tmp_path) == []
