"""The parts of a recorded question: goals, branches, stages, and the names that older versions used."""
