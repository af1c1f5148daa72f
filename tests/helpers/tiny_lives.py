"""Agents that live on, as a program that takes seconds: `python tiny_lives.py ...`."""

import toys

import metaevo


def search(num_generations: int = 150) -> metaevo.Search:
    return toys.search(
        toys.pbt(),
        toys.quadratic(num_segments=150),
        num_generations=num_generations,
        segments_per_generation=1,
        chunk_size=2,
    )


if __name__ == "__main__":
    metaevo.main(search)
