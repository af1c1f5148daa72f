"""A learned function is one file: a toy, installed as a package of its own, passes.

The toy names neither a plot nor a closed form, and nothing of metaevo or of its tests
knows it. It is declared by an entry point, as other people's functions are.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY = '''
"""A loss of a temporal difference with one number."""

import jax.numpy as jnp

from metaevo import losses
from metaevo.learned.functions import Learned, positive
from metaevo.learned.operations import operation


@operation("toy_loss", slot="td_loss", hand_made=losses.td_square)
def toy_loss(scale: float = 1.0) -> Learned:
    """0.5 δ² + x scale δ Q, x starting at 0."""
    positive(scale=scale)

    def init(key):
        del key
        return {"x": jnp.zeros(())}

    def apply(params, td_error, q, target, context=None):
        usual = losses.td_square(td_error, q, target, context)
        return usual + params["x"] * scale * jnp.tanh(td_error) * jnp.tanh(q)

    return Learned(init, apply, {"op": "toy_loss", "scale": scale}, True)
'''


@pytest.fixture
def environment(tmp_path):
    """Variables of a process in which the toy is installed."""
    (tmp_path / "toy_package.py").write_text(TOY)
    info = tmp_path / "toy_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metaevo.operations]\nmine = toy_package\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "tests" / "helpers")])
    return {**os.environ, "PYTHONPATH": path}


def python(environment, *args):
    done = subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_function_in_one_file_passes_the_contract(environment):
    """It is saved and loaded, has its reference in numpy, and is drawn."""
    out = python(
        environment, "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "tests/contracts/test_learned_functions.py", "-k", "toy_loss or unknown",
    )  # fmt: skip
    passed = {
        "describes_its_function_and_refuses_bad_settings",
        "values_differ_between_mirrored_members_and_stay_finite",
        "a_function_is_the_same_wherever_it_runs",
        "a_stored_program_is_saved_as_a_function_is",
        "portrait",
    }
    assert f"{len(passed) + 1} passed" in out, out


def test_a_function_in_one_file_starts_as_its_loop_and_has_a_row_in_the_docs_table(
    environment,
):
    code = textwrap.dedent(
        """
        import test_learned_functions as contract
        contract.CASES = {k: x for k, x in contract.CASES.items() if k == "toy_loss"}
        contract.IN_LOOPS = {"dqn": ["td_loss"]}
        contract.test_ten_steps_from_the_start_are_the_hand_made_algorithm("dqn")
        print(contract.helper.table())
        """
    )
    environment["PYTHONPATH"] += os.pathsep + str(ROOT / "tests" / "contracts")
    out = python(environment, "-c", code)
    (row,) = (line for line in out.splitlines() if "toy_loss" in line)
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[0] == "`toy_package.toy_loss`"
    assert cells.count("`td_loss`") == 10


def test_two_operations_of_one_name_are_refused(environment, tmp_path):
    (tmp_path / "toy_package.py").write_text(TOY.replace('"toy_loss"', '"td_network"'))
    code = textwrap.dedent(
        """
        from metaevo.learned import operations
        assert operations.get("td_network").title == "losses.td_network"
        try:
            operations.everything()
        except operations.ArtifactError as error:
            print(error)
        """
    )
    out = python(environment, "-c", code)
    assert "'td_network' is both losses.td_network and toy_package.toy_loss" in out


def test_an_entry_point_that_cannot_be_imported_is_named(environment, tmp_path):
    (tmp_path / "toy_package.py").write_text("import nothing_of_that_name")
    code = textwrap.dedent(
        """
        from metaevo.learned import operations
        operations.get("td_network")
        try:
            operations.get("toy_loss")
        except operations.ArtifactError as error:
            print(error)
        """
    )
    out = python(environment, "-c", code)
    assert "entry point 'mine'" in out
    assert "nothing_of_that_name" in out
