"""The answer of a report at first sight: the finding, a row for each optimizer, and what to run next."""
