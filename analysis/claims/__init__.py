"""The claims of Shallue et al. (2019), and three of later papers, judged by the tables of results folders.

statement       a number with its interval and the range in which a claim puts it; the verdict on many of them
evidence        results folders -> their tables side by side, without training or drawing
numbers         ratios of limits, slopes against batch size
scaling         regimes, goals, models, data sets: claims (a), (b), (d), (e)
optimizers      momentum, Adam and its relatives: claims (c), (i)
tuning          learning rates and the part of the space that works: claims (f), (g)
errors          best errors and label smoothing: claim (h)
registry        every claim by its letter; the table of verdicts
settle          what would settle a claim that is not: command and cost
"""
