"""`metaevo verify` and `metaevo doctor`: what they find, and what they leave alone."""

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import pytest
import runs as files

from metaevo.cli import doctor, findings, main, verify


@pytest.fixture
def run(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    return tmp_path / "run"


def bad(path):
    return set(findings.failures(verify.verify(path)))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_finished_run_is_whole_and_is_left_as_it_is(run):
    def contents():
        files = sorted(p for p in run.rglob("*") if p.is_file())
        return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

    before = contents()
    found = verify.verify(run)
    assert all(finding.ok for finding in found)
    names = {finding.name for finding in found}
    assert {"manifest.json", "metrics.jsonl", "solution", "held_out"} <= names
    assert "agents/solution" in names
    assert contents() == before
    assert findings.text(found, "whole", "not whole").endswith("whole")


def test_a_flipped_bit_is_found(run):
    for name in ("solution", "held_out", "agents/hand-made"):
        flip(run / name / "arrays.safetensors")
        assert bad(run) == {name}
        flip(run / name / "arrays.safetensors")


def test_an_older_checkpoint_is_no_loss_and_the_last_one_is(run):
    folders = sorted((run / "checkpoints").iterdir())
    flip(folders[0] / "arrays.safetensors")
    assert bad(run) == set()
    assert any(not finding.ok for finding in verify.verify(run))
    for folder in folders[1:]:
        flip(folder / "arrays.safetensors")
    assert f"checkpoints/{folders[0].name}" in bad(run)
    assert "metrics.jsonl" in bad(run)


def test_missing_and_doubled_generations_are_found(run):
    log = run / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert bad(run) == {"metrics.jsonl"}  # shorter
    record = json.loads(lines[1])
    record["generation"] = 2
    doubled = (json.dumps(record) + "\n").encode()
    padding = len(lines[1]) - len(doubled)
    log.write_bytes(b"".join([lines[0], doubled[:-1], b" " * padding, b"\n"]))
    log.write_bytes(log.read_bytes() + b"".join(lines[2:]))
    assert bad(run) == {"metrics.jsonl"}


def test_a_run_that_was_stopped_before_its_first_generation_is_whole(run):
    log = run / "metrics.jsonl"
    log.write_bytes(b"")
    for name in ("checkpoints", "solution", "agents", "held_out"):
        assert "metrics.jsonl" in bad(run)
        shutil.rmtree(run / name)
    assert "metrics.jsonl" not in bad(run)
    log.write_bytes(b"{}\n")
    assert "metrics.jsonl" in bad(run)


FOREIGN = (b'{"my": "data"}\n', b"text\n", b"[]\n", b"\n")


def test_foreign_lines_in_the_log_are_found(run):
    log = run / "metrics.jsonl"
    ours = log.read_bytes()
    for line in FOREIGN:
        log.write_bytes(ours + line)
        assert bad(run) == {"metrics.jsonl"}
        log.write_bytes(line + ours)
        assert bad(run) == {"metrics.jsonl"}
    # A doubled generation, and a gap after the checkpoint.
    record = json.loads(ours.splitlines()[-1])
    for generation in (3, 5):
        log.write_bytes(ours + json.dumps(record | {"generation": generation}).encode())
        assert bad(run) == set()  # cut short: a run that is killed leaves it
        log.write_bytes(log.read_bytes() + b"\n")
        assert bad(run) == {"metrics.jsonl"}
    log.write_bytes(ours + json.dumps(record | {"generation": 4}).encode() + b"\n")
    assert bad(run) == set()


def command(capsys, *arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", ["metaevo", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit:
        main.command()
    return exit.value.code, capsys.readouterr()


def forged(run, alter):
    """Alter the evidence of a run's solution, and sign it again, as a forger would."""
    path = run / "solution" / "manifest.json"
    manifest = json.loads(path.read_text())
    alter(manifest["evidence"])
    path.write_text(json.dumps(manifest))
    files.sign(run)


def test_verdicts_on_the_card_that_the_scores_do_not_give_are_found(
    run, capsys, monkeypatch
):
    found = {x.name: x for x in verify.verify(run / "solution")}
    kept = json.loads((run / "solution" / "manifest.json").read_text())["evidence"]
    said, *others = kept["verdicts"]
    assert found["solution: verdict 1"].message == f"agrees with its scores: {said}"
    worse = f"the solution is worse than {said.rpartition('than ')[2]}"
    assert worse != said
    forged(run, lambda x: x.update(verdicts=[worse, *others]))
    for place in (run, run / "solution"):
        assert bad(place) == {"solution: verdict 1"}
    code, shown = command(capsys, "verify", run, monkeypatch=monkeypatch)
    assert code == 4
    assert f"its scores give: {said}; its card says: {worse}" in shown.out
    forged(run, lambda x: x.update(verdicts=[said, *others, worse]))
    assert bad(run) == {f"solution: verdict {len(others) + 2}"}
    assert "its scores give: no such verdict" in findings.text(
        verify.verify(run), "", ""
    )
    forged(run, lambda x: x.update(verdicts=others))
    assert bad(run) == {"solution: verdict"}
    # Another version may have had fewer verdicts; a wrong one is wrong in any.
    forged(run, lambda x: x.update(metaevo="0.0"))
    assert bad(run) == set()
    assert "the card is of 0.0" in findings.text(verify.verify(run), "", "")
    forged(run, lambda x: x.update(verdicts=[worse, *others]))
    assert bad(run) == {"solution: verdict 1"}
    forged(run, lambda x: x["scores"][0].update(fitness=1e9))
    assert bad(run) == {"solution: verdicts"}


def test_the_command_and_its_exit_codes(run, tmp_path, capsys, monkeypatch):
    assert command(capsys, "verify", run, monkeypatch=monkeypatch)[0] == 0
    code, said = command(capsys, "verify", run / "solution", monkeypatch=monkeypatch)
    assert code == 0
    assert "Artifact(lr)" in said.out
    flip(run / "solution" / "arrays.safetensors")
    code, said = command(capsys, "verify", run, monkeypatch=monkeypatch)
    assert code == 4
    assert "not whole: solution" in said.out
    assert command(capsys, "verify", tmp_path, monkeypatch=monkeypatch)[0] == 2


def test_the_doctor_finds_this_machine_well(tmp_path, capsys, monkeypatch):
    missing = tmp_path / "not" / "yet"
    code, said = command(capsys, "doctor", missing, monkeypatch=monkeypatch)
    assert code == 0, said.out
    for what in ("devices", "memory", "disk", "checkpoints", "locks", "cache", "wandb"):
        assert what in said.out
    assert not list(tmp_path.iterdir())


def test_the_doctor_knows_every_extra(tmp_path, monkeypatch):
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert doctor.EXTRAS.keys() == extras.keys() - {"docs", "dev"}
    monkeypatch.setattr(doctor, "EXTRAS", {"games": "json", "ray": "no_such_module"})
    ok, said = doctor.CHECKS["extras"](tmp_path)
    assert ok
    assert said.startswith("games")
    assert said.endswith("; not installed: ray")


def test_the_doctor_finds_what_is_wrong(tmp_path, monkeypatch):
    def broken(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.rename", broken)
    monkeypatch.setattr(doctor, "file_system", lambda path: "nfs4")
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 60)
    found = {f.name: f for f in doctor.examine(tmp_path) if not f.ok}
    assert {"checkpoints", "file system", "disk"} <= found.keys()
    assert "local disk" in found["file system"].message
    assert "No space left" in found["checkpoints"].message
    said = findings.text(list(found.values()), "ready", "problems")
    assert said.endswith(f"problems: {', '.join(found)}")


def test_the_file_system_of_a_path_is_the_innermost_mount(tmp_path):
    mounts = tmp_path / "mounts"
    lines = ["/dev/a / ext4 rw 0 0", "h:/x /home nfs4 rw 0 0", "t /home/t tmpfs rw 0 0"]
    mounts.write_text("\n".join(lines))
    kinds = {
        path: doctor.file_system(Path(path), str(mounts))
        for path in ("/etc", "/home/me", "/home/t/x", "/homes")
    }
    assert kinds == {
        "/etc": "ext4",
        "/home/me": "nfs4",
        "/home/t/x": "tmpfs",
        "/homes": "ext4",
    }
