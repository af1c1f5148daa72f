"""Trains the PPO of `examples/torch_ppo.py` from many seeds, with a loss in two forms.

    python torch_seeds_against_jax.py EXPORTED.py ARTIFACT NUM_SEEDS FOLDER ...

Prints a line for each seed: the mean return of the last quarter with the exported loss,
that with the loss by JAX, and the seed.
"""

import sys

import torch_by_jax

exported, artifact, num_seeds, *folders = sys.argv[1:]
torch_ppo = torch_by_jax.examples(folders)
NUM_UPDATES = torch_ppo.main.__defaults__[1]
losses = torch_ppo.evolved(exported), torch_by_jax.loss(artifact)

for seed in range(int(num_seeds)):
    ended = [torch_ppo.train(loss, NUM_UPDATES, seed)[1] for loss in losses]
    print(*(sum(x) / len(x) for x in ended), seed, flush=True)
