"""The two tasks of Adversarial Cheap Talk's code, from gymnax's.

Lu et al., 2023, https://github.com/luchris429/adversarial-cheap-talk, `act/cartpole.py`
and `act/pendulum.py`.
"""

from __future__ import annotations

import dataclasses

import gymnax

from metaevo.envs import Env
from metaevo.envs import gymnax as adapter


def cartpole() -> Env:
    """CartPole whose episodes end after 200 steps."""
    env, params = gymnax.make("CartPole-v1")
    params = dataclasses.replace(params, max_steps_in_episode=200)
    return adapter.adapt(env, params, "cheap_talk/CartPole")


def pendulum() -> Env:
    """Pendulum with torques in [-1, 1], paid (cos θ + 1) / 2."""
    env, params = gymnax.make("Pendulum-v1")
    params = dataclasses.replace(params, max_torque=1.0, g=9.8)
    made = adapter.adapt(env, params, "cheap_talk/Pendulum")

    def upright(step):
        def paid(key, state, action):
            state, out = step(key, state, action)
            return state, out._replace(reward=(out.final_obs[0] + 1) / 2)

        return paid

    return made._replace(step=upright(made.step), step_raw=upright(made.step_raw))
