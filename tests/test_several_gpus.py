"""Of several GPUs every worker takes its own. The machine is imagined here; tests/test_gpu.py needs a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from study import cluster, config, placement, team, worker
from study.placement import Engine

GPUS = 4


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """One with some GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
    monkeypatch.setattr(placement, "usable", lambda device: "cuda" if device == "auto" else device)


@pytest.mark.parametrize(
    ("engine", "workers"),
    [
        (Engine(), 4),
        (Engine(device="cuda"), 4),
        (Engine(workers=6), 6),
        (Engine(device="cuda:1"), 1),
        (Engine(devices=2), 2),
        (Engine(devices=3), 1),
        (Engine(devices=4), 1),
    ],
)
def test_a_worker_or_a_team_for_every_gpu(engine, workers):
    assert engine.settled().workers == workers


def test_a_cpu_has_no_number(monkeypatch):
    monkeypatch.undo()
    assert Engine(device="cpu:0").settled().device == "cpu"


@pytest.mark.parametrize(
    ("engine", "devices"),
    [
        (Engine(device="cuda"), ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]),
        (Engine(device="cuda", first_gpu=3), ["cuda:3", "cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (Engine(device="cuda:2"), ["cuda:2"] * 5),
        (Engine(device="cpu"), ["cpu"] * 5),
    ],
)
def test_processes_take_the_gpus_in_turn(engine, devices):
    assert [engine.device_of(number) for number in range(5)] == devices


@pytest.mark.parametrize(("seat", "device"), [(None, "cuda:1"), (team.Seat("host", 1, "team 1", 0, 2, 6), "cuda:2")])
def test_a_worker_makes_its_gpu_the_current_one(monkeypatch, seat, device):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(placement, "settle_arithmetic", lambda: None)  # it would outlive this test

    def recv() -> None:
        raise EOFError

    with pytest.raises(EOFError):
        worker._obey(SimpleNamespace(recv=recv), worker.Setting(Engine(device="cuda"), None, 5), team.Team(), seat)
    assert taken == [device]


def test_teams_have_gpus_of_their_own():
    _, teams = team.seats(2, 2)
    assert [[seat.number for seat in seats] for seats in teams] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("asked", "room", "workers"), [({}, 1, 4), ({"workers": 7}, 1, 4), ({"workers": 7}, 2, 7), ({"devices": 2}, 1, 2)]
)
def test_the_memory_of_each_gpu_limits_the_workers_on_it(monkeypatch, asked, room, workers):
    """`room`: for so many on each."""
    monkeypatch.setattr(config, "device_bytes", lambda device: 2**34)
    monkeypatch.setattr(config, "most_workers", lambda *_: room)
    monkeypatch.setattr(config.streaming, "needed", lambda *_: False)
    [job] = config.jobs(["batch_size=32", "engine=serial"])
    [job] = config.materialise([replace(job, engine=replace(job.engine, **asked))])
    assert job.engine.workers == workers


@pytest.mark.parametrize(
    ("engine", "n_jobs", "first", "each"),
    [
        (Engine(device="cuda", workers=4), -1, [0, 1, 2, 3, 0], 1),
        (Engine(device="cuda", workers=4), 2, [0, 2, 0, 2, 0], 2),
        (Engine(device="cuda", workers=2, devices=2), -1, [0, 2, 0, 2, 0], 1),
        (Engine(device="cpu", workers=2), 1, [0] * 5, 2),
    ],
)
def test_jobs_take_the_gpus_in_turn(engine, n_jobs, first, each):
    [job] = config.jobs(["batch_size=32", f"results={Path('nowhere')}"])
    jobs = [replace(job, engine=engine)] * 5
    _, divided = cluster._divided(jobs, cluster.Cluster("local", {"n_jobs": n_jobs}))
    assert [job.engine.first_gpu for job in divided] == first
    assert {job.engine.workers for job in divided} == {each}
