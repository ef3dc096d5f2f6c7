"""Turn a results folder into tables, figures and a report. Needs pandas, not torch.

An example for a notebook in the root of the repository. The examples of all modules start from its first four lines:

>>> from matplotlib.figure import Figure
>>> from analysis.load import load, load_study
>>> published, ax = "results/published/mlp_digits", Figure().subplots()
>>> study = load_study(f"{published}/studies/mlp_digits/sgd/64")
>>> from analysis.tables import answers, scaling, steps_to_result
>>> studies = answers.answers(load(published))
>>> steps, limits = steps_to_result.table(studies), scaling.table(studies)
>>> len(steps), int(steps["steps_to_result"].min())
(22, 10)

The modules, in the order of the data:

    question                the parts of a recorded question: goals, branches, stages, batch-size schedules
    counting                the rules of counting: first crossings, statuses, stopping rules, counted trials
    edges                   sides of the search space beyond which better trials may lie
    load, measurements      folders -> records of studies; measurements are read from disk when needed
    intervals               confidence intervals of S(B): the median best of n trials
    surrogate               a Gaussian process of all batch sizes proposes the points of `search=refine`
    tables                  frames -> tables (pure functions)
        steps_to_result     how the trials of a study ended; S(B) of each study
        audits              possible faults of a search: edges, noise, under-tuning
        answers             the search that S(B) of a study is read from; repeats and reruns
        trials, best_errors every counted trial; the best error within a budget
        fits, scaling       curves through S(B); limits of scaling and critical batch sizes
        compare, relative   optimizers and workloads side by side; workloads on one scale
        transfer            transferred against retuned hyperparameters
        status              the progress of a sweep
    estimates               S(B) by fresh seeds, limits and comparisons, as estimates with intervals
        tuned               the steps of the tuned configurations, with two intervals
        convex, limits      the convex curve through them; the limits of scaling
        pairs, verdicts     which of two curves needs fewer steps: a row a statement; the same in sentences
    rises                   curves whose steps rise with the batch size, which have no limits; likely causes
    noise_scale, one_step   gradients along tuned runs: their noise scale, the best learning rate of one step
    branched, proxies       critical batch sizes by branches of a run; cheap proxies beside the measured ones
    batch_schedules         batch sizes that grow: their steps to result, and verified against constant ones
    certificates            is the mean error of a tuned configuration below a goal?
    sizes                   critical batch sizes as power laws of the size of the model or the data
    claims                  the claims of the paper, judged by tables; what would settle them
    gallery                 published studies side by side: pages, leaderboard, performance profiles
    advice                  the batch size, devices and accumulation steps to train with
    figures                 tables -> axes: `figures.FIGURES` names every drawing
    report                  tables, figures, findings and warnings -> one page
        headlines           the findings on each curve in sentences
        answer              its first screen: the finding, a row for each optimizer, what to run next
        take                for other documents: LaTeX tables, a citation with a hash of the measurements
    result                  all of these for a script or notebook: frames, findings and figures of results folders
    labels, units           numbers, durations and goals as text; batch sizes and half-lives in tokens
    export                  tables for other programs, and the layout that Shallue et al. released
    parallel                work in several processes
    errors                  the bases of errors that end a command in one line
"""
