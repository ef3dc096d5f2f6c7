"""The base of every error that refuses a request, for `analysis` and `study` alike."""


class Refused(Exception):
    """A request that cannot be met. The message names the rule, the value and the cure; commands exit with status 2."""
