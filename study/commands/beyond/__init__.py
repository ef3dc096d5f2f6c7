"""Verbs on top of the steps to a goal: certificates of goals, critical batch sizes across sizes, batch schedules."""
