"""Figures of many studies at once, which no report has."""
