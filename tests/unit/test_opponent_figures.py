"""Figures of two players: curves, policies, and the animated picture."""

import base64
import csv
import io

import numpy as np

from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures, opponents

SITUATIONS = ("start", "CC", "CD", "DC", "DD")


def runs(own, num_segments=2):
    curve = np.linspace(-2.0, own, num_segments)[None] + np.zeros((3, 1))
    metrics = {"return": curve, "opponent_return": -curve}
    for i, x in enumerate(SITUATIONS):
        metrics[f"shaper/{x}"] = np.full((3, num_segments), 0.2 * i)
        metrics[f"opponent/{x}"] = np.full((3, num_segments), 1 - 0.2 * i)
    return HeldOut(np.zeros((1, 3)), np.zeros((1, 3)), (metrics,))


def test_both_players_are_drawn(tmp_path):
    from PIL import Image

    held_out = {"solution": runs(-0.5), "hand-made": runs(-2.0)}
    drawings = opponents.drawings(held_out, 0, "")
    found = [figures.figure(tmp_path, *one) for one in drawings]
    assert [x["name"] for x in found] == ["payoffs", "probabilities"]
    rows = list(csv.reader((tmp_path / "payoffs.csv").read_text().splitlines()))
    assert rows[2] == ["solution", "1", "-0.5", "0.5"]
    rows = list(csv.reader((tmp_path / "probabilities.csv").read_text().splitlines()))
    # In the order of play, whatever that of the metrics.
    assert [row[1] for row in rows[1::2]] == list(SITUATIONS) * 2
    assert found[1]["image"].startswith("data:image/gif;base64,")
    picture = (tmp_path / "policies.gif").read_bytes()
    assert base64.b64decode(found[1]["image"].partition(",")[2]) == picture
    with Image.open(io.BytesIO(picture)) as image:
        assert image.n_frames == 2
        image.seek(1)
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert len(colors) > 5


def test_a_loop_without_a_second_player_has_none():
    one = HeldOut(np.zeros((1, 3)), np.zeros((1, 3)), ({"return": np.zeros((3, 4))},))
    assert opponents.drawings({"solution": one, "hand-made": one}, 0, "") == []


def test_probabilities_are_left_out_where_there_are_none():
    metrics = {"return": np.zeros((3, 4)), "opponent_return": np.ones((3, 4))}
    one = HeldOut(np.zeros((1, 3)), np.zeros((1, 3)), (metrics,))
    (found,) = opponents.drawings({"solution": one, "hand-made": one}, 0, "here")
    assert found.title == "Payoffs of both players, here"
    assert found.animation is None
