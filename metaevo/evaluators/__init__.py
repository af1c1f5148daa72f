"""Evaluators: where a generation's training runs happen."""
