"""The words after `optimizer=` that chose the optimizers of studies: not always the names that the studies record."""

import shlex
from collections.abc import Sequence

from analysis.labels import OPTIMIZERS
from analysis.load import StudyData

CLASS = "torch"
"""The choice of an optimizer class, whose studies record its import path."""


def chosen(optimizers: Sequence[str], studies: Sequence[StudyData]) -> list[str]:
    """The choices that sweep these optimizers again.

    A study records the name of a registered optimizer or the import path of a class, with the batch-size schedule if
    the batch size grows. A file of the user may have another name, such as `my_lion` for the class `lions.Lion`. If it
    is not clear which file made an optimizer, all files of its command are given: a sweep trains nothing twice.

    Arguments:
        optimizers: as the studies record them; other names stay.

    >>> study.provenance[-1]["command"] = "python -m study sweep optimizer=my_sgd,momentum"
    >>> chosen(["sgd", "adam"], [study])
    ['my_sgd', 'adam']
    """
    found: dict[str, None] = {}
    for optimizer in optimizers:
        mine = [study for study in studies if study.optimizer == optimizer]
        commands = dict.fromkeys(_command(study) for study in mine) or dict.fromkeys([""])
        for command in commands:
            name = str(mine[0].question["optimizer"]) if mine else optimizer
            same = {str(study.question["optimizer"]) for study in studies if _command(study) == command}
            found |= dict.fromkeys(_choices(name, same, _given(command)))
    return list(found)


def apart(mine: Sequence[StudyData], studies: Sequence[StudyData]) -> dict[str, str]:
    """`optimizer=` without those that only other sweeps have now, if the command of these studies named them, too.

    >>> study.provenance[-1]["command"] = "python -m study sweep optimizer=momentum,sgd"
    >>> other = load_study(f"{published}/studies/mlp_digits/momentum/64")
    >>> apart([study], [study, other]), apart([study, other], [study, other])
    ({'optimizer': 'sgd'}, {})
    """
    others = {study.optimizer for study in studies} - {study.optimizer for study in mine}
    given = list(dict.fromkeys(choice for study in mine for choice in _given(_command(study))))
    kept = [choice for choice in given if choice not in others]
    return {"optimizer": ",".join(kept)} if 0 < len(kept) < len(given) else {}


def _command(study: StudyData) -> str:
    return str(study.provenance[-1].get("command") or "") if study.provenance else ""


def _given(command: str) -> list[str]:
    """The values of the last `optimizer=` of a command."""
    try:
        words = shlex.split(command)
    except ValueError:  # a call from Python
        return []
    values = [word.partition("=")[2].split(",") for word in words if word.startswith("optimizer=")][-1:]
    return values[0] if values else []


def _choices(name: str, same: set[str], given: Sequence[str]) -> Sequence[str]:
    """The choices among those `given` by a command that may have made the optimizer `name`, one of the `same` command.

    >>> _choices("lions.Lion", {"lions.Lion", "adam"}, ["my_lion", "adam"])
    ['my_lion']
    >>> _choices("lions.Lion", {"lions.Lion", "signs.Sign"}, ["my_lion", "my_sign"])
    ['my_lion', 'my_sign']
    >>> _choices("sgd", {"sgd", "adam"}, [])
    ['sgd']
    """
    if not given or name in given:
        return [name]
    if "." in name and CLASS in given:
        return [CLASS]
    files = [choice for choice in given if choice not in OPTIMIZERS and choice not in same]
    return files or [name]
