"""Importing this module imports what all workers need; the server that they are forks of does it once."""

from study.imports import uncollected

with uncollected():
    import study.commands
    import study.devices.distributed
    import study.engine.train
    import study.workers.process  # noqa: F401
