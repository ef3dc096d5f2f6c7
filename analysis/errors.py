"""The base class of every error that refuses a request, in `analysis` and in `study`."""


class Refused(Exception):
    """A request that cannot be met. The message names the rule, the value and the cure; commands exit with status 2."""
