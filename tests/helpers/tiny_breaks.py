"""`tiny_search.py`, in which an evaluation fails in one process of several."""

import sys

import tiny_search

import metaevo
from metaevo.evaluators.local import LocalEvaluator


def breaks(*args):
    raise ValueError("no such luck")


if __name__ == "__main__":
    if any(arg.startswith("run.process_id=") and arg[-1] == "1" for arg in sys.argv):
        LocalEvaluator.__call__ = breaks
    metaevo.main(tiny_search.search)
