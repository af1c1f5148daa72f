"""Load artifacts where POSIX is missing, as the job `load-on-other-systems` does."""

import os
from pathlib import Path

import metaevo
from metaevo import reference

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "artifact-1"

artifact = metaevo.load(GOLDEN)
print(os.name, ascii(str(artifact)))  # a console may lack Greek letters
print(float(artifact.value_loss(1.0, 0.5, 0.2)), artifact.lr)
print(repr(metaevo.load("zoo:value_loss")))
print(reference.load("zoo:value_loss").slots.keys())
