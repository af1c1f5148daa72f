"""Loggers: destinations of the records of a run, one per generation."""
