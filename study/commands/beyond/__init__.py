"""Verbs that go beyond the steps to a goal: certificates of goals, and critical batch sizes across sizes."""
