"""Stores every curve beside its question, which is the complete configuration of its study.

Only this package writes measurements under a results folder:

    results/studies/<workload>/<optimizer>/<batch_size>/
        study.json              the question; once the study is complete, also the records of its runs
        runs/3f9ac1d2.json      the record of one run: where and how it trained
        trials/000017.parquet   one finished trial; the file exists if and only if the trial is finished
        commands/000017/        of a trial that is a command: its metrics, its output, and the folder of the script
        checkpoints/000017.pt   the latest checkpoint of an unfinished trial; deleted when the trial finishes
        curves.parquet          all trials in one file, once the study is complete
        rounds/1.json           with `search=refine`: the points of a stage after the scouts, written once
        noise/000123.json       gradient noise of the tuned run at step 123 (`study.store.noise`)
        .claim.0-of-1.1         the claim of a process that trains a shard (`study.store.claims`); deleted at its end
        stage-1-momentum.high/  another search of the study, in a wider search space, with the same files
                                (`analysis.counting.Branch`); also budget-2/, repeat-1/, rerun-17/ and
                                rule-linear-from-32-trial-5/
    results/branched/           runs that other batch sizes start from, and their branches (`study.store.trunks`)

A curves file has one row per measurement: `trial`, `step` and one column per metric, NaN where it was not measured. Its
`trials` metadata is a JSON list with one record per trial. With `evaluation.exact=false`, the goal's metric is NaN
where it missed the goal before the end of the budget; the records say what it is `at_least` there. An imported study
has only `study.json` and `curves.parquet`; its records keep the released `status` and `trial_id`.

Every file is written under a temporary name that begins with a dot, flushed to disk, and renamed: a reader sees a whole
file or none (`study.store.atomic`).

Several processes may train one study, each a shard of the trials. They share the question and write separate files.
When all trials are on file and no other process holds a claim, one process gathers the files.
"""
# ruff: noqa: F401

from study.store.atomic import StoreError
from study.store.checkpoints import Checkpoints
from study.store.claims import busy, claimed
from study.store.curves import COMPACTED, load, write_curves
from study.store.questions import differences, extended
from study.store.rounds import read_round, write_round
from study.store.studies import (
    announce,
    check,
    check_imported,
    compact,
    continued,
    end_run,
    fingerprints,
    gather,
    identity,
    now,
    of_curve,
    open_study,
    read,
    recorded,
    runs,
    save,
    save_imported,
    study_folder,
)
from study.store.trunks import start_file
