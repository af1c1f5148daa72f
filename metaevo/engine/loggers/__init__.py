"""Loggers: where the records of a run go, one per generation."""
