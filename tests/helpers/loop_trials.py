"""A loop of metaevo as the trainer of `metaevo.optimize`."""

import sys
from pathlib import Path


def score(trial):
    sys.path.append(str(Path(__file__).parent))
    import toys

    import metaevo

    return metaevo.train_trial(toys.quadratic(num_segments=4), trial)
