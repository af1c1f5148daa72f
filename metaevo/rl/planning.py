"""Tree search in an environment, by mctx (Apache-2.0, DeepMind).

The tree steps `Env.step_raw`, never an environment that resets itself. A state after an
episode's end stays as it is: nothing is gained behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.slots import Context
from metaevo.types import Key, PyTree

__all__ = [
    "Plan",
    "Root",
    "SearchResult",
    "Thought",
    "TreeNode",
    "gumbel",
    "legal",
    "model",
    "puct",
]

Model = Callable[..., tuple[Any, PyTree]]
Plan = Callable[..., "SearchResult"]


class Root(NamedTuple):
    """Roots of searches; leaves [B, ...].

    Attributes:
        logits: [B, A] of the policy.
        value: [B] for the player to move.
        state: states of the environment.
        mask: [B, A] bool, the legal actions, at least one each; None: all are.
        move: [B] moves of the episode so far; None where none is drawn.
    """

    logits: jax.Array
    value: jax.Array
    state: PyTree
    mask: jax.Array | None
    move: jax.Array | None = None


class Thought(NamedTuple):
    """The last search of `InnerLoop.act`, carried to be drawn.

    Attributes:
        visits: [A] shares of the simulations.
    """

    visits: jax.Array


class TreeNode(NamedTuple):
    """A state in a search tree; leaves [B, ...].

    Attributes:
        state: state of the environment.
        terminated, truncated: [B] bool, how the episode ended with it.
        value: [B] for who is to move.
    """

    state: PyTree
    terminated: jax.Array
    truncated: jax.Array
    value: jax.Array


class SearchResult(NamedTuple):
    """Results of searches.

    Attributes:
        action: [B] int32.
        policy: [B, A] probabilities to learn from.
        value: [B] of the root after the search, for the player to move.
        old_value: [B] of the root before it.
        visits: [B, A] shares of the simulations.
    """

    action: jax.Array
    policy: jax.Array
    value: jax.Array
    old_value: jax.Array
    visits: jax.Array


def legal(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Logits [..., A] with those of illegal actions at the least number there is."""
    if mask is None:
        return logits
    return jnp.where(mask, logits, jnp.finfo(logits.dtype).min)


def model(
    env: envs.Env,
    evaluate: Callable[..., tuple[jax.Array, jax.Array]],
    gamma: jax.Array | float,
    scale: Callable[[jax.Array], jax.Array] = lambda reward: reward,
) -> Model:
    """The environment as mctx's `recurrent_fn`; embeddings are `TreeNode`s.

    Values are those of the player to move, so the discount is negative where the next
    player is another: -gamma times what is good for that one. A state that a time limit
    ended is worth its value however often a search comes back to it.

    Args:
        evaluate: `(keys, obs, state) -> (logits [B, A], values [B])`, leaves [B, ...],
            for who is to move.
        gamma: discount, in [0, 1].
        scale: of rewards, such as `normalization.scale`.
    """
    mctx = _mctx()

    def one(key, action, node):
        state, ended = node.state, node.terminated | node.truncated
        after, out = env.step_raw(key, state, action)
        after = jax.tree.map(lambda new, old: jnp.where(ended, old, new), after, state)
        sign = 1.0
        if env.player is not None:
            sign = jnp.where(env.player(after) == env.player(state), 1.0, -1.0)
        # Selected, not multiplied: what follows an end may be infinite.
        reward = jnp.where(ended, 0.0, scale(out.reward))
        terminated = jnp.where(ended, node.terminated, out.terminated)
        truncated = jnp.where(ended, node.truncated, out.done & ~out.terminated)
        # Nothing happens after a time limit, so nothing is discounted.
        discount = jnp.where(node.truncated, 1.0, sign * gamma)
        discount = jnp.where(terminated, 0.0, discount)
        after = TreeNode(after, terminated, truncated, node.value)
        mask = envs.legal_actions(env, after.state)
        return after, out.final_obs, reward, discount, mask

    def step(params, key, action, embedding):
        del params
        keys = jax.random.split(key, (2, action.shape[0]))
        after, obs, reward, discount, mask = jax.vmap(one)(keys[0], action, embedding)
        logits, value = evaluate(keys[1], obs, after.state)
        # The observation is none of a state that was truncated before.
        value = jnp.where(embedding.truncated, embedding.value, value)
        value = jnp.where(after.terminated, 0.0, value)
        output = mctx.RecurrentFnOutput(
            reward=reward,
            discount=discount,
            prior_logits=legal(logits, mask),
            value=value,
        )  # pyright: ignore[reportCallIssue]
        return output, after._replace(value=value)

    return step


def gumbel(
    key: Key,
    model: Model,
    root: Root,
    meta: Any,
    context: Context,
    *,
    num_simulations: int,
    num_considered: int,
    explore: bool,
) -> SearchResult:
    """Gumbel AlphaZero's search: sequential halving of sampled actions in the root.

    Values are scaled to [0, 1] by the least and greatest of a node, as MuZero's and
    mctx's are by default.

    Args:
        model: from `model`.
        meta: with the slots `q_scale`, `q_visits`, `gumbel_scale`, `q_transform`.
        num_simulations: simulations of each search.
        num_considered: actions that the root looks at, at most.
        explore: False for the best action.

    References:
        Danihelka et al., 2022, https://openreview.net/forum?id=bERaNdoegnO.
    """
    mctx = _mctx()
    visits = slots.value(meta.q_visits, context)
    scale = slots.value(meta.q_scale, context)

    def q_transform(tree, node):
        most = tree.children_visits[node].max(-1)
        q = mctx.qtransform_completed_by_mix_value(
            tree,
            node,
            value_scale=1.0,
            maxvisit_init=1.0,
            rescale_values=True,
        )
        # mctx's function is 1 + `most` times the values.
        q = meta.q_transform(q / (1.0 + most), context)
        return (visits + most) * scale * q

    found = mctx.gumbel_muzero_policy(
        (),
        key,
        _root(mctx, root),
        model,
        num_simulations,
        invalid_actions=None if root.mask is None else ~root.mask,
        qtransform=q_transform,
        max_num_considered_actions=num_considered,
        gumbel_scale=slots.value(meta.gumbel_scale, context) if explore else 0.0,
    )
    return _found(found, found.action)


def puct(
    key: Key,
    model: Model,
    root: Root,
    meta: Any,
    context: Context,
    *,
    num_simulations: int,
    bounds: tuple[float, float] | None,
    explore: bool,
) -> SearchResult:
    """AlphaZero's search: an upper confidence bound by the policy, in all nodes.

    Args:
        meta: with the slots `c_init`, `c_base`, `dirichlet_alpha`,
            `dirichlet_fraction`, `temperature`, `q_transform`. `context.stats` of the
            temperature holds `move`, the number of those before.
        bounds: least and greatest value there can be, by which values are scaled to
            [0, 1]; None: by the least and greatest of a node.
        explore: False for the most visited action, without noise in the root.

    References:
        Silver et al., 2018, https://www.science.org/doi/10.1126/science.aar6404.
    """
    mctx = _mctx()

    def q_transform(tree, node):
        if bounds is None:
            q = mctx.qtransform_by_parent_and_siblings(tree, node)
        else:
            low, high = bounds
            q = mctx.qtransform_by_min_max(tree, node, min_value=low, max_value=high)
        return meta.q_transform(q, context)

    draw_key, noise_key, key = jax.random.split(key, 3)
    if explore:
        alpha, share = (
            slots.value(x, context)
            for x in (meta.dirichlet_alpha, meta.dirichlet_fraction)
        )
        root = root._replace(logits=noisy(noise_key, root, alpha, share))
    found = mctx.muzero_policy(
        (),
        key,
        _root(mctx, root),
        model,
        num_simulations,
        invalid_actions=None if root.mask is None else ~root.mask,
        qtransform=q_transform,
        dirichlet_fraction=0.0,
        pb_c_init=slots.value(meta.c_init, context),
        pb_c_base=slots.value(meta.c_base, context),
    )
    visits = found.action_weights
    if not explore:
        return _found(found, jnp.argmax(visits, -1).astype(jnp.int32))
    # Drawn here: mctx lets moves without a visit have a share, illegal ones too.
    logits = jnp.where(visits > 0, jnp.log(visits), -jnp.inf)

    def temperature(move):
        now = context._replace(stats={**context.stats, "move": move})
        return jnp.asarray(slots.value(meta.temperature, now))

    temperatures = jax.vmap(temperature)(root.move)
    logits = logits / temperatures[:, None]
    drawn = jax.random.categorical(draw_key, logits)
    return _found(found, drawn.astype(jnp.int32))


def noisy(key: Key, root: Root, alpha: Any, share: Any) -> jax.Array:
    """Logits [B, A] of the policy with noise from a Dirichlet distribution.

    The noise is on the legal actions alone. mctx's is on all of them, so that after
    masking little of it is left where few are legal.

    Args:
        alpha: of the distribution, > 0.
        share: of the noise, in [0, 1].
    """
    # A Dirichlet's draw is of normalized gammas; logarithms, since most underflow.
    gamma = jax.random.loggamma(key, jnp.float32(alpha), root.logits.shape)
    noise, prior = (jax.nn.softmax(legal(x, root.mask)) for x in (gamma, root.logits))
    mixed = (1.0 - share) * prior + share * noise
    return jnp.log(jnp.maximum(mixed, jnp.finfo(mixed.dtype).tiny))


def _root(mctx, root: Root) -> Any:
    goes_on = jnp.zeros(root.value.shape, bool)
    return mctx.RootFnOutput(
        prior_logits=legal(root.logits, root.mask),
        value=root.value,
        embedding=TreeNode(root.state, goes_on, goes_on, root.value),
    )


def _found(found: Any, action: jax.Array) -> SearchResult:
    tree = found.search_tree
    summary = tree.summary()
    return SearchResult(
        action,
        found.action_weights,
        summary.value,
        tree.raw_values[:, tree.ROOT_INDEX],
        summary.visit_probs,
    )


def _mctx() -> Any:
    with envs.optional("AlphaZero", "games"):
        import mctx
    return mctx
