"""Keeps every curve with its question beside it. The only room that writes measurements under a results folder.

    results/studies/<workload>/<optimizer>/<batch_size>/
        study.json              the question, and the provenance of the runs that worked on it
        runs/3f9ac1d2.json      of one run that works on it
        trials/000017.parquet   one finished trial; it exists if and only if the trial is finished
        checkpoints/000017.pt   where an unfinished long trial goes on; gone once it is finished
        curves.parquet          all of them in one file, once the study is complete
        .claim.0-of-1.1         of the process that works on it (`study.store.claims`); gone once it does not
        stage-1-momentum.high/  further searches of the same study, with the same files (`analysis.counting.Branch`):
                                wider boxes; also budget-2/, repeat-1/, rerun-17/ and rule-linear-from-32-trial-5/

A curves file holds a row per measurement (`trial`, `step` and one column per metric, NaN where not measured); its
`trials` metadata is a JSON list with a record per trial. An imported study is the first and the last of these files,
and its records have `status` and `trial_id` as they were released. Everything is written aside under a name that begins
with a dot, flushed to disk, and renamed: a reader sees a whole file or none (`study.store.atomic`).

Several processes may work on one study, each on its shard of the trials. They write files of their own, but for the
question, which they agree on; one of them, once all is there and no process works on it, gathers the files.
"""
# ruff: noqa: F401

from study.store.atomic import StoreError
from study.store.claims import claimed
from study.store.curves import COMPACTED, load, write_curves
from study.store.studies import (
    Checkpoints,
    announce,
    check,
    check_imported,
    compact,
    differences,
    end_run,
    fingerprint,
    gather,
    held,
    identity,
    most,
    now,
    open_study,
    read,
    runs,
    save,
    save_imported,
    study_folder,
)
