"""Importing this module imports what all workers need; the server that they are forks of does it once."""
# ruff: noqa: F401

from study.devices.imports import uncollected

with uncollected():
    import rich.console  # of the main module, which every process imports

    import study.devices.distributed
    import study.engine.train
    import study.workers.process
