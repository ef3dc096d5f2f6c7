"""Results folders -> frames -> tables -> figures -> a report. Runs wherever pandas does: no torch, no engine.

In a notebook, in the repository's root:

>>> from analysis import load
>>> from analysis.tables import answers, scaling, steps_to_result
>>> studies = answers.answers(load.load("results/published/mlp_digits"))
>>> steps, limits = steps_to_result.table(studies), scaling.table(studies)
>>> len(steps), int(steps["steps_to_result"].min())
(22, 11)

Its modules, in the order in which data flow through them:

    counting            what counts: goals, first crossings, statuses, which trials enter the answer
    edges               sides of the box that is searched, beyond which better trials may lie
    load                folders -> studies, whose curves stay on disk until asked for
    steps_to_result     a study -> how its trials ended -> S(B), a row for each study
    intervals           how sure S(B) is: the median best of n trials
    audits              what may have gone wrong in a search: edges, noise, under-tuning
    searches            which of a study's searches answers; its reruns
    rules               what tuned configurations cost where rules moved them, beside tuning anew
    tuning, errors      what was tried and how the search went; the best error that a budget buys
    fits                curves through S(B)
    scaling             limits of scaling and critical batch sizes, with what to say of them
    relative, compare   workloads on one scale; optimizers and workloads side by side
    step_times, splits  how long a step takes; batch sizes as devices x per-device batch x accumulation steps
    advise              which of these is fastest and cheapest, in words; split_tables: the same as tables of words
    cautions            warnings in words
    figures             tables -> axes: `figures.FIGURES` names every drawing
    shown, methods      tables as people read them; definitions, linked from where they are used
    report              tables, figures and definitions -> one page
    build               a folder -> all of the above
    status, export      how far a sweep is; tables and the paper's layout for others
    files               whole files or none
"""
