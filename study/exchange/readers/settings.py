"""Reads the YAML and JSON files with hyperparameters that stand beside the logs of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from study.exchange.readers.tables import flat, refuse

LARGEST = 2**20
"""Larger files [bytes] are no settings."""


class _Plain(yaml.SafeLoader):
    """Reads Python objects, which Lightning writes, as None: nothing is built from a file."""


_Plain.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def read(path: Path, where: str) -> dict[str, Any]:
    """The settings in a file, nested keys joined by `/`; empty if it holds something else.

    W&B's `config.yaml` keeps each value in a mapping with its description, which is taken off.

    Raises:
        ImportRefused: the file is malformed; the message has the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        held = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_Plain)
    except json.JSONDecodeError as error:
        raise refuse(where, f"line {error.lineno} is not JSON: {error.msg}.") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise refuse(where, f"line {line} is not YAML: {error.problem}.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise refuse(where, f"{error}.") from error
    if not isinstance(held, Mapping):
        return {}
    plain = {
        key: value["value"] if isinstance(value, Mapping) and set(value) <= {"desc", "value"} and value else value
        for key, value in held.items()
        if not str(key).startswith("_")
    }
    return flat(plain)


def of_folder(folder: Path, root: Path) -> list[Path]:
    """The files of settings in one folder, Hydra's `.hydra/config.yaml` among them."""
    found = [path for suffix in ("yaml", "yml", "json") for path in sorted(folder.glob(f"*.{suffix}"))]
    hydra = folder / ".hydra" / "config.yaml"
    found += [hydra] if hydra.is_file() else []
    return [path for path in found if path.is_file() and path.stat().st_size <= LARGEST and _below(path, root)]


def _below(path: Path, root: Path) -> bool:
    return root == path.parent or root in path.parents
