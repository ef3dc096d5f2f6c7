"""What a worker process keeps while it waits for orders."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
from blobs import Blobs

from study import engine, worker
from study.placement import Engine
from study.team import Team
from workloads import base


def test_data_as_they_were_made_are_not_kept_beside_those_that_are_trained_on(make_study, monkeypatch):
    splits, made, held = Blobs.splits, [], []

    def remembered(self, device):
        found = splits(self, device)
        made.append(weakref.ref(found.train[0]))
        return found

    def measure(study, workload, data, *how):
        held.append(weakref.ref(data.inputs))

    orders = iter([("measure", make_study(), 4, None)])

    def recv():
        for order in orders:
            return order
        gc.collect()
        assert [tensor() is None for tensor in (*made, *held)] == [True, False]
        raise EOFError

    monkeypatch.setattr(base, "build", lambda workload: Blobs(images=True))
    monkeypatch.setattr(Blobs, "splits", remembered)
    monkeypatch.setattr(engine, "measure", measure)
    pipe, setting = SimpleNamespace(recv=recv, send=lambda told: None), worker.Setting(Engine(device="cpu"), None, 0)
    with pytest.raises(EOFError):
        worker._obey(pipe, setting, Team(), None)
