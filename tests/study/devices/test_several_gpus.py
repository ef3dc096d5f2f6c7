"""Of several GPUs every worker takes its own. The machine is imagined here; tests/test_gpu.py needs a real one."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from study.cluster import job_process, launch
from study.config import checked, preflight
from study.config.jobs import parse_jobs
from study.devices import distributed, placement
from study.devices.placement import Placement
from study.engine.cost import Cost
from study.errors import UsageError
from study.store.claims import WHOLE
from study.training.provenance import provenance
from study.training.search import SearchRun
from study.workers import process

GPUS = 4


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """One with some GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: GPUS)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=2**34))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU of {device}")


OPENING = ["init", "_lazy_init", "set_device", "current_device", "current_stream", "synchronize", "mem_get_info"]
OPENING += ["empty_cache", "get_rng_state", "set_rng_state", "manual_seed", "Stream", "CUDAGraph"]
"""Functions and classes of torch.cuda that open a GPU."""


@pytest.fixture
def opened(monkeypatch):
    """The calls that open a GPU. A tensor on a GPU is an error here anyway."""
    calls = []
    for name in OPENING:
        monkeypatch.setattr(torch.cuda, name, lambda *_, name=name, **__: calls.append(name))
    return calls


RADAM = ["optimizer=torch", "optimizer.target=torch.optim.RAdam", "search.space.learning_rate=[0.001,0.01]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "arithmetic"), [(["engine=lanes"], "linear_chain"), (["engine=serial"], "plain"), (RADAM, "plain")]
)
def test_the_process_that_starts_workers_opens_no_gpu(opened, words, arithmetic):
    """On many clusters a GPU serves one process at a time, which must be the worker."""
    [job] = preflight.settle(parse_jobs(["batch_size=32", "engine.device=cuda:1", *words]))
    costs = {"cost_of": lambda study: Cost(1.0, 1.0, 1.0), "compiles": lambda study: False}
    workers = SimpleNamespace(placement=job.placement, count=1, **costs)
    record = provenance(SearchRun(job.study, job.results), workers, WHOLE)
    assert (job.study.arithmetic, record["gpu"]) == (arithmetic, "GPU of cuda:1")
    assert record["repeats"].startswith("to rounding")
    assert opened == []


def test_lanes_are_checked_once_for_all_batch_sizes(monkeypatch, tmp_path):
    found = []
    monkeypatch.setattr(checked, "lanes_fail", lambda study, *_: found.append(study.batch_size))
    jobs = preflight.settle(
        parse_jobs(["batch_size=1,32,64", "optimizer=sgd,momentum", "engine.device=cuda", f"results={tmp_path}"])
    )
    assert {job.study.arithmetic for job in jobs} == {"linear_chain"}
    assert found == [2, 2]  # one for each optimizer


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("auto", "cuda"),
        ("cuda", "cuda"),
        ("cuda:3", "cuda:3"),
        ("cpu", "cpu"),
        ("cuda:4", "torch finds 4 GPUs"),
        ("cuda:x", "Invalid device"),
        ("mps", "torch finds 4 GPUs"),
    ],
)
def test_a_device_is_looked_up_without_opening_it(opened, device, found):
    if found.startswith("c"):
        assert placement.usable(device) == found
    else:
        with pytest.raises(UsageError, match=f"engine.device '{device}' cannot be used: .*{found}"):
            placement.usable(device)
    assert opened == []


def test_without_a_gpu_it_is_said_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert placement.usable("auto") == "cpu"
    for built, why in ((True, "finds 0 GPUs"), (False, "was built without CUDA")):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda built=built: built)
        with pytest.raises(UsageError, match=f"torch {why}"):
            placement.usable("cuda")


@pytest.mark.parametrize(("devices", "workers"), [(2, 2), (3, 1), (4, 1)])
def test_a_team_for_as_many_gpus(devices, workers):
    assert Placement(devices=devices).settled().workers == workers


@pytest.mark.parametrize(("asked", "workers"), [({}, 4), ({"device": "cuda"}, 4), ({"device": "cuda:1"}, 1)])
def test_a_worker_for_every_gpu(asked, workers):
    assert Placement(**asked).settled().workers == workers
    assert Placement(workers=6, **asked).settled().workers == 6


def test_a_cpu_has_no_number(monkeypatch):
    monkeypatch.undo()
    assert Placement(device="cpu:0").settled().device == "cpu"


@pytest.mark.parametrize(
    ("engine", "devices"),
    [
        (Placement(device="cuda"), ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0"]),
        (Placement(device="cuda:2"), ["cuda:2"] * 5),
        (Placement(device="cpu"), ["cpu"] * 5),
    ],
)
def test_processes_take_the_gpus_in_turn(engine, devices):
    assert [engine.device_of(number) for number in range(5)] == devices


@pytest.mark.parametrize(
    ("rank", "device"), [(None, "cuda:1"), (distributed.Rank("host", 1, "team 1", 0, 2, 6), "cuda:2")]
)
def test_a_worker_makes_its_gpu_the_current_one(monkeypatch, rank, device):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    closed = SimpleNamespace(recv=iter(()).__next__)
    with pytest.raises(StopIteration):
        process.serve(closed, process.Setting(Placement(device="cuda"), None, 5), distributed.Team(), rank)
    assert taken == [device]


def test_teams_have_gpus_of_their_own():
    _, teams = distributed.ranks(2, 2)
    assert [[rank.local_index for rank in ranks] for ranks in teams] == [[0, 1], [2, 3]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "room", "workers"), [({}, 1, 4), ({"workers": 7}, 1, 4), ({"workers": 7}, 2, 7), ({"devices": 2}, 1, 2)]
)
def test_the_memory_of_each_gpu_limits_the_workers_on_it(monkeypatch, asked, room, workers):
    """`room`: for so many on each."""
    monkeypatch.setattr(preflight, "device_bytes", lambda device: 2**34)
    monkeypatch.setattr(preflight, "most_workers", lambda *_: room)
    monkeypatch.setattr(checked.streaming, "needed", lambda *_: False)
    [job] = parse_jobs(["batch_size=32", "engine=serial"])
    [job] = preflight.settle([replace(job, placement=replace(job.placement, **asked))])
    assert job.placement.workers == workers


@pytest.mark.parametrize(
    ("engine", "n_jobs", "seen", "each"),
    [
        (Placement(device="cuda", workers=4), -1, ["0", "1", "2", "3"], 1),
        (Placement(device="cuda", workers=4), 2, ["0,1", "2,3"], 2),
        (Placement(device="cuda", workers=2, devices=2), -1, ["0,1", "2,3"], 1),
        (Placement(device="cuda", workers=8), -1, ["0", "1", "2", "3", "0"], 1),
        (Placement(device="cuda", workers=6), 1, ["0,1,2,3"], 6),
        (Placement(device="cuda:1", workers=4), -1, [], 1),
        (Placement(device="cpu", workers=2), 1, [], 2),
    ],
)
def test_jobs_have_gpus_apart(tmp_path, monkeypatch, engine, n_jobs, seen, each):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    [job] = parse_jobs(["batch_size=32", f"results={Path('nowhere')}"])
    local = launch.Cluster("local", {"n_jobs": n_jobs})
    settings, divided = launch._divided([replace(job, placement=engine)] * 5, local)
    assert [*launch._gpus(local, settings, divided[0].placement).values()] == seen
    assert {job.placement.workers for job in divided} == {each}


@pytest.mark.parametrize(
    ("granted", "count", "processes", "each", "seen"),
    [
        ("7,5,GPU-2ba3,1", 4, 2, 2, ["7,5", "GPU-2ba3,1"]),
        ("0,2,5", 3, 3, 1, ["0", "2", "5"]),  # with gaps
        ("GPU-aaaa,GPU-bbbb", 2, 3, 1, ["GPU-aaaa", "GPU-bbbb", "GPU-aaaa"]),
        ("MIG-1c2d", 1, 2, 2, ["MIG-1c2d", "MIG-1c2d"]),
        ("3,-1,4", 1, 2, 1, ["3", "3"]),  # CUDA ignores what follows an invalid number
    ],
)
def test_gpus_that_were_granted_keep_their_names(monkeypatch, granted, count, processes, each, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", granted)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert placement.gpus_apart(processes, each) == seen


@pytest.mark.parametrize(
    "granted",
    [
        ["0", "1"],
        [f"GPU-8932f937-d72c-4106-c12f-20bd9faed9f{number}" for number in range(8)],
        ["MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"],  # as older drivers name a part of a GPU
    ],
)
def test_a_job_takes_gpus_of_any_name(tmp_path, monkeypatch, granted):
    monkeypatch.setattr(launch.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(granted))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(granted))
    local = launch.Cluster("local", {})
    gpus = launch._gpus(local, {"n_jobs": 1}, Placement(device="cuda", workers=len(granted)))
    with job_process._free(gpus, 0) as seen:
        assert seen == ",".join(granted)


@pytest.mark.parametrize(("local", "device"), [("0", "cuda:0"), ("1", "cuda:1"), (None, "cuda:1")])
def test_a_process_of_torchrun_takes_the_gpu_of_its_local_rank(monkeypatch, local, device):
    """On the second machine of two with four processes each; without LOCAL_RANK, by its rank among all."""
    ranks = {"WORLD_SIZE": "8", "RANK": "5", "TORCHELASTIC_RUN_ID": "none"}
    for name, value in {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}.items():
        monkeypatch.setenv(name, value)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    assert Placement(device="cuda").device_of(distributed.launched().local_index) == device


def test_a_team_that_cannot_connect_fails_before_it_loads_data():
    """NCCL would otherwise connect at the first exchange of gradients."""

    def connect(tensor):
        raise RuntimeError("NCCL error: duplicate GPU detected")

    setting = process.Setting(Placement(device="cpu"), None, 0)
    team = SimpleNamespace(size=2, broadcast=lambda call: setting, sum=connect)
    with pytest.raises(RuntimeError, match="duplicate GPU"):
        process.serve(None, None, team, None)


@pytest.fixture
def choices(tmp_path):
    return {tmp_path / str(number): str(number) for number in range(3)}


def test_a_job_takes_gpus_that_are_free(choices):
    """Jobs take their turn, but none waits for one that takes long, nor sits beside it."""
    with job_process._free(choices, 0) as long:
        for number in (1, 2, 3, 4, 5, 3):
            with job_process._free(choices, number) as short:
                assert short != long
        with job_process._free(choices, 3) as second, job_process._free(choices, 4) as third:
            assert {long, second, third} == {"0", "1", "2"}
            with job_process._free(choices, 5) as of_another_command:
                assert of_another_command == "2"
    with job_process._free(choices, 6) as again:
        assert again == long


def test_gpus_are_taken_in_turn_where_files_cannot_be_locked(choices, monkeypatch):
    monkeypatch.setattr(job_process.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(37, "No locks available")))
    with job_process._free(choices, 3) as first, job_process._free(choices, 4) as second:
        assert (first, second) == ("0", "1")


@pytest.mark.parametrize("some", [True, False])
def test_a_training_sees_its_gpus_only(choices, tmp_path, monkeypatch, some):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "all")
    seen = "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setattr(job_process, "TRAINING", [sys.executable, "-c", seen])
    tasks = [job_process.Task(tmp_path / f"{number}.log", b"", gpus=choices if some else {}) for number in range(2)]
    assert job_process.run(tasks, SimpleNamespace(job=1)) == 0
    assert tasks[1].log.read_text() == f"sees {1 if some else 'all'}\n"
