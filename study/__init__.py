"""The measuring instrument: studies propose trials, workers turn trials into curves, the store keeps them on disk."""

from study.shadowing import import_ours

import_ours()
