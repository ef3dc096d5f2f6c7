"""The two bases of errors that end a command in one line, in `analysis` and in `study`. Where an error is both, work
had begun."""


class Refused(Exception):
    """A request that cannot be met. The message names the rule, the value and the cure; commands exit with status 2."""


class Failed(Exception):
    """Work that began and did not end well. The message says why and how to continue; commands exit with status 1."""


class Unwritten(Refused, Failed):
    """Files made from measurements cannot be written. The measurements are safe."""
