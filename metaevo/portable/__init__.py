"""Learned functions as programs: lists of elementary operations on arrays."""
