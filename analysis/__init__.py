"""Results folders -> frames -> tables -> figures -> a report. Needs pandas, not torch.

In a notebook in the root of the repository; the examples of all modules go on from the first four lines:

>>> from matplotlib.figure import Figure
>>> from analysis.load import load, load_study
>>> published, ax = "results/published/mlp_digits", Figure().subplots()
>>> study = load_study(f"{published}/studies/mlp_digits/sgd/64")
>>> from analysis.tables import answers, scaling, steps_to_result
>>> studies = answers.answers(load(published))
>>> steps, limits = steps_to_result.table(studies), scaling.table(studies)
>>> len(steps), int(steps["steps_to_result"].min())
(22, 10)

Its modules, in the order of the data:

    counting                the rules of counting: goals, first crossings, statuses, stopping rules, counted trials
    branches                the searches of a study
    edges                   sides of the search space beyond which better trials may lie
    load, measurements      folders -> records of studies, whose measurements stay on disk until they are needed
    tables                  frames -> tables (pure functions)
        steps_to_result     a study -> how its trials ended -> S(B), a row for each study
        audits              possible faults of a search: edges, noise, under-tuning
        answers             the search of each study that answers; its repeats and reruns
        trials, best_errors the course of a search; the best error within a budget
        fits, scaling       curves through S(B); limits of scaling and critical batch sizes
        compare, relative   optimizers and workloads side by side; workloads on one scale
        transfer            transferred against retuned hyperparameters
        status              the progress of a sweep
    intervals               confidence intervals of S(B): the median best of n trials
    advice                  the batch size, devices and accumulation steps to train with
    figures                 tables -> axes: `figures.FIGURES` names every drawing
    report                  tables, figures, findings and warnings -> one page
    labels                  the one way to write numbers, durations and goals
    export                  tables, and the paper's layout, for other programs
    parallel                work in several processes
"""
