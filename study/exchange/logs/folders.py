"""Names of workloads and optimizers as names of folders: two names never share a folder."""

from collections.abc import Mapping, Sequence

from study.exchange.importing import ImportRefused
from study.exchange.logs.names import listed
from study.exchange.released_tree import component


def checked(kind: str, called: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    """Refuse two names that share a folder, also where the file system ignores case; returns notes on changed names.

    Arguments:
        kind: `optimizer` or `workload`.
        called: the name as messages have it -> the name from which `component` makes that of its folder.
        columns: those that hold the names.

    Raises:
        ImportRefused: two names share a folder.

    >>> checked("optimizer", {"'adam (a)'": "adam (a)", "'sgd'": "sgd"}, ["optim"])
    ["Names of folders have no special characters: the optimizer 'adam (a)' is called adam_a"]
    >>> checked("optimizer", {"'Adam'": "Adam", "'adam'": "adam"}, ["optim"])
    Traceback (most recent call last):
    study.exchange.importing.ImportRefused: the optimizers 'Adam' and 'adam' are one to file systems that ignore case, \
which would mix their runs. Rename one of them in optim; if all runs have one optimizer, --set optimizer=NAME.
    """
    taken: dict[str, str] = {}
    for name, text in called.items():
        folder = component(text)
        other = taken.setdefault(folder.casefold(), name)
        if other != name:
            same = component(called[other]) == folder
            why = f"would both be in the folder {folder}" if same else "are one to file systems that ignore case"
            raise ImportRefused(
                f"the {kind}s {other} and {name} {why}, which would mix their runs. Rename one of them in "
                f"{listed(columns) if columns else 'the log'}; if all runs have one {kind}, --set {kind}=NAME."
            )
    pairs = [(name, component(text)) for name, text in called.items()]
    changed = [f"the {kind} {name} is called {folder}" for name, folder in pairs if called[name] != folder]
    return [f"Names of folders have no special characters: {listed(changed)}"] if changed else []
