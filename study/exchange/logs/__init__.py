"""Runs of one's own, logged by other tools: tables of `study.exchange.readers` -> one log -> studies.

names           which column is what
gathering       the rows and settings of each table, under the names of this project
calls_of_log    refuses steps of W&B that count calls of log, not updates
against_epochs  compares steps with epochs: steps counted from 0, batch sizes of a part of an update
run_settings    what is known of each run: batch size, optimizer, hyperparameters
long_frame      tables -> one frame of measurements in long form, and the settings of each run
goals           a goal on a metric, also on one that grows
spaces          the search space that the runs of a study covered
folders         names of workloads and optimizers as names of folders: two names never share one
studies         a log -> questions, records of trials and measurements
importing       `import_log`: all of this in a line
"""
