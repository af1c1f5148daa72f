"""`metaevo distill` on a real search, from the run to the report."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.analysis import distill, report
from strategies.open_es import open_es


def test_a_search_and_its_closed_form_in_the_report(tmp_path):
    space = spaces.replace(value_loss=losses.residual_network("zero", (4,)))
    sizes = {"num_segments": 2, "features": (8,)}
    search = metaevo.Search(
        ppo.make(envs.make("gymnax/CartPole-v1"), ppo.Config(2048, **sizes)),
        space,
        open_es(space, 4, 0.5, optax.adam(0.3)),
        2,
        fitness.area_under_curve,
    )
    run = tmp_path / "run"
    config = metaevo.RunConfig(
        directory=str(run), held_out_seeds=4, wandb="disabled", devices=1
    )
    metaevo.run(search, config, "tiny")
    assert "Closed form" not in (run / "report" / "index.html").read_text()
    lines = distill.distill(search, run, 16, 0, jax.devices()[:1])
    assert "x = value - target" in lines[0]
    assert "16 paired seeds" in lines[1]
    kept = distill.read(run)["kept"]
    assert (run / "closed_form" / "manifest.json").exists() == kept
    if kept:
        loss = metaevo.load(run / "closed_form").value_loss
        assert np.isfinite(loss(jnp.ones(3), jnp.zeros(3), jnp.ones(3))).all()
    page = report.write(run).read_text()
    assert "Closed form" in page
    assert distill.read(run)["forms"]["value_loss"]["formula"].split(",")[0] in page
