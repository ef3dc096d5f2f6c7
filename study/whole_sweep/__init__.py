"""A whole sweep: finds the missing studies, measures their cost, and trains them."""
# ruff: noqa: F401

from study.whole_sweep.asked import (
    check_changes,
    jobs_elsewhere,
    jobs_here,
    missing,
    on_file,
    refusal,
    settled,
    tuned,
)
from study.whole_sweep.costs import measured, plan, raise_any, workers_for
from study.whole_sweep.training import Waiting, train, train_searches

COMPLETE = "Nothing is left to train."
"""What a plan says of a sweep without missing trials."""
