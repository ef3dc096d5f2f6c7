"""`study import` of a log: runs that other tools recorded become studies in a results folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from analysis.labels import batch_sizes, counted
from study import store
from study.exchange.logs import goals, long_frame, studies
from study.exchange.logs.long_frame import Log
from study.exchange.logs.names import Asked, listed, plain
from study.exchange.logs.studies import UNKNOWN, Imported
from study.exchange.readers import sources, tabular

Watch = Callable[[Imported, int], None]
"""Called after every study, with the study and its number of measurements."""


class Said(NamedTuple):
    """What the user is told.

    Attributes:
        read: how many runs were read, and which columns gave what.
        warnings: what was left out, or is odd.
    """

    read: list[str]
    warnings: list[str]


def import_log(
    source: Path,
    results: Path,
    asked: Asked,
    goal_texts: Sequence[str] = (),
    trials: int | None = None,
    command: str = "",
    watch: Watch = lambda study, rows: None,
    begin: Callable[[int], None] = lambda studies: None,
) -> Said:
    """Read a log into a results folder. Nothing is written before all of it is read.

    Arguments:
        source: a file or folder that `study.exchange.readers.sources` reads.
        goal_texts: each `[WORKLOAD:]METRIC<X`, or `>X` for a metric that grows; WORKLOAD may contain `*`, and the last
            goal that fits a workload counts.
        trials: N, the number of COMPLETE runs of a batch size that count; None or 0: all.
        begin: called with the number of studies before the first is written.

    Raises:
        ImportRefused: the source is malformed, or something is missing; the message has the cure.
        StoreError: the results folder holds another question or cannot be written.
    """
    started = store.now()
    log = long_frame.gather(sources.read(source), asked)
    size = studies.size_of(log, asked.size)
    workloads, odd_workloads = studies.by_workload(log, tabular.stem(source), size)
    of_optimizer, odd_optimizers = studies.optimizers(log)
    log, chosen = goals.choose(log, workloads, goal_texts)
    made = studies.make(log, chosen, workloads, of_optimizer, trials, size)
    store.check_imported(results, [study.question for study in made])
    begin(len(made))
    lines = studies.lines(made)
    notes = [*odd_workloads, *odd_optimizers, *_notes(log, source)]
    for study in made:
        own = lines.get((study.question["workload"]["name"], study.question["optimizer"]), [])
        measurements = len(study.columns["step"])
        provenance = {
            **{"command": command, "started": started, "ended": store.now(), "source": source.name},
            **{"log": source.name, "read": log.facts, "measurements": measurements, "warnings": [*notes, *own]},
        }
        store.save_imported(results, study.question, provenance, study.records, study.columns)
        watch(study, measurements)
    return Said(_read(log, made, source), [*notes, *(line for some in lines.values() for line in some)])


def _notes(log: Log, source: Path) -> list[str]:
    """What holds for the whole log."""
    results = [path.relative_to(source) for path in sources.results_in(source)]
    notes = [f"{path}: results of this project, no logs: left out" for path in results]
    notes += [f"{note[0].upper()}{note[1:]}" for note in log.notes]
    if any("optimizer" not in settings for settings in log.runs.values()):
        notes.append(f"Runs without an optimizer are under the name {UNKNOWN}: --set optimizer=NAME names it")
    return notes


def _read(log: Log, made: Sequence[Imported], source: Path) -> list[str]:
    """What was read, and from which columns."""
    sizes = sorted({study.question["batch_size"] for study in made})
    runs = sum(len(study.records) for study in made)
    renamed = [
        f"{name} from {listed(columns, 3)}"
        for name, columns in log.read_as.items()
        if any(plain(column) != plain(name) for column in columns)
    ]
    read = [f"{source.name}: {counted(runs, 'run')} at {batch_sizes(sizes)}."]
    facts = [f"{fact}." for fact in log.facts]
    return [*read, *([f"Read {'; '.join(renamed)}."] if renamed else []), *facts]
