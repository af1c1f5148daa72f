"""Inner loops of metaevo as trainers; see `metaevo.train_trial`."""


def short_ppo(trial):
    """PPO on CartPole, lives of four segments of 16,384 frames."""
    import metaevo
    from inner_loops import ppo
    from metaevo import envs

    config = ppo.Config(65_536, num_segments=4, num_steps=64, features=(32, 32))
    return metaevo.train_trial(ppo.make(envs.make("gymnax/CartPole-v1"), config), trial)
