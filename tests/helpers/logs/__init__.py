"""Logs of other tools, made for tests."""
