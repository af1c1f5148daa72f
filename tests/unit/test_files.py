"""Opening files of folders that may come from a stranger."""

import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest
from planted import nested, sparse

from metaevo.analysis import holdout
from metaevo.analysis.independent import judge
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import _files, checkpoint, jsonl, verified


def test_links_pipes_and_folders_are_not_read(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert _files.read_bytes(tmp_path / "file", 4) == b"data"
    for name in ("link", "pipe", "."):
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.read_bytes(tmp_path / name, 4)
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.replace_file(tmp_path / name, b"other")
        with pytest.raises(CheckpointError, match="not a regular file"):
            _files.open_append(tmp_path / name)
    with pytest.raises(CheckpointError, match="larger"):
        _files.read_bytes(tmp_path / "file", 3)
    assert (tmp_path / "file").read_bytes() == b"data"


def test_link_below_a_directory_is_found_and_the_directory_may_be_one(tmp_path):
    (tmp_path / "run" / "a").mkdir(parents=True)
    (tmp_path / "link").symlink_to("run")
    _files.check_tree(tmp_path / "link")
    _files.check_tree(tmp_path / "missing")
    (tmp_path / "run" / "a" / "b").symlink_to("/")
    for name in ("link", "run"):
        with pytest.raises(CheckpointError, match="symbolic link"):
            _files.check_tree(tmp_path / name)


def test_json_is_nested_no_deeper_than_its_readers_can_take():
    deepest = b"[" * 64 + b"]" * 64
    assert _files.parse_json(deepest)
    wide = b"[" + b"[]," * 1000 + b"[]]"
    assert len(_files.parse_json(wide)) == 1001
    for depth in (65, 500, 100_000):
        with pytest.raises(ValueError, match="too deeply"):
            _files.parse_json(b"[" * depth + b"]" * depth)


def test_text_is_utf_8_without_lone_surrogates():
    assert (
        _files.parse_json(b'"\\ud83d\\ude00 \\udcff"') == "\U0001f600 \udcff"
        # The last one stands for a byte of a path.
    )
    for data in (b'"\\ud800x"', b'"x\\uDFFF"', b'"\xed\xa0\x80"', b'"\xff"'):
        with pytest.raises(ValueError, match="code"):
            _files.parse_json(data)
    with pytest.raises(ValueError, match="more than 1,000,000 lists"):
        _files.parse_json(b"[" + b"[]," * 1_000_000 + b"[]]")


# --- what other names and sizes may hide ----------------------------------------------


def test_file_with_a_second_name_is_not_in_a_run_directory(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_bytes(b"data")
    os.link(tmp_path / "mine", tmp_path / "run" / "history.jsonl")
    with pytest.raises(CheckpointError, match=r"history\.jsonl has a second name"):
        _files.check_tree(tmp_path / "run")
    with pytest.raises(CheckpointError, match="second name"):
        _files.open_append(tmp_path / "run" / "history.jsonl")
    # Installers link the files of a package to those of their cache.
    assert _files.read_bytes(tmp_path / "mine", 4) == b"data"
    (tmp_path / "mine").unlink()
    _files.check_tree(tmp_path / "run")


def test_deeply_nested_folders_are_refused(tmp_path):
    refused = pytest.raises(CheckpointError, match="folders nested more than 32 deep")
    with nested(tmp_path / "run", 33), refused:
        _files.check_tree(tmp_path / "run")


def test_size_is_compared_before_a_byte_is_read(tmp_path):
    """Sparse files of terabytes: reading them would take minutes and all memory."""
    verified.write(tmp_path / "a", {"x": np.zeros(1000, np.float32)}, {})
    (tmp_path / "log").write_bytes(b'{"generation": 0}\n')
    sparse(tmp_path / "a" / "arrays.safetensors", 1 << 43)
    sparse(tmp_path / "log", 1 << 43)
    sparse(tmp_path / "manifest.json", 1 << 43)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"manifest\.json describes 4,000"):
            verified.read(tmp_path / "a")
        with pytest.raises(CheckpointError, match="larger than 16 MiB"):
            _files.read_json(tmp_path / "manifest.json", verified.MAX_JSON)
        for read in (jsonl.read, jsonl.count):
            with pytest.raises(CheckpointError, match="line 2: longer than 32 MiB"):
                read(tmp_path / "log")
        with pytest.raises(CheckpointError, match="line 2: longer than 32 MiB"):
            jsonl.JsonlLogger(tmp_path / "log", 1 << 43)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
    (tmp_path / "a" / "arrays.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="has 3 bytes"):
        verified.read(tmp_path / "a")


X = "['x']"  # a leaf of a tree


def claim(folder, count):
    """Let a manifest truly describe a sparse file of `count` zeros, as forgers do."""
    verified.write(folder, {X: np.zeros(1, np.float32)}, {})
    header = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    text = json.dumps({X: header}).encode()
    path = folder / "arrays.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    sparse(path, path.stat().st_size + 4 * count)
    manifest = _files.read_json(folder / "manifest.json", verified.MAX_JSON)
    manifest["arrays"][X][0] = [count]
    with open(path, "rb") as file:
        manifest["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
    manifest["digest"] = verified.digest(manifest)
    _files.replace_file(folder / "manifest.json", json.dumps(manifest).encode())


def test_a_size_that_the_manifest_truly_claims_takes_no_memory(tmp_path):
    """128 MiB, hashed in blocks where they are verified, and refused elsewhere."""
    (tmp_path / "checkpoints").mkdir()
    newest = tmp_path / "checkpoints" / "generation-00000001"
    claim(newest, 1 << 25)
    store = checkpoint.Store(tmp_path / "checkpoints")
    tracemalloc.start()
    try:
        assert verified.check(newest)["arrays"] == {X: [[1 << 25], "float32"]}
        assert store.check()["arrays"]
        for load in (holdout.load, judge.load):
            with pytest.raises(CheckpointError, match="larger than 64 MiB"):
                load(newest)
        template = {"x": np.zeros(3, np.float32)}
        for read in (store.load, lambda x: store.before(5, x)):
            with pytest.raises(
                CheckpointError, match=r"shape \(33554432,\) instead of"
            ):
                read(template)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
    arrays = np.memmap(newest / "arrays.safetensors", mode="r+")
    arrays[-5] = 1
    arrays.flush()
    with pytest.raises(CheckpointError, match="does not match its sha256"):
        verified.check(newest)


def test_a_header_that_the_manifest_does_not_describe_is_found(tmp_path):
    claim(tmp_path / "a", 8)
    path = tmp_path / "a" / "manifest.json"
    manifest = _files.read_json(path, verified.MAX_JSON)
    manifest["arrays"][X][0] = [2, 4]
    manifest["digest"] = verified.digest(manifest)
    _files.replace_file(path, json.dumps(manifest).encode())
    for read in (verified.check, verified.read):
        with pytest.raises(CheckpointError, match=r"not those of manifest\.json"):
            read(tmp_path / "a")


def test_sizes_of_a_manifest_are_whole_numbers(tmp_path):
    verified.write(tmp_path, {"x": np.zeros(3, np.float32)}, {})
    manifest = _files.read_json(tmp_path / "manifest.json", verified.MAX_JSON)
    for shape in (["a", 10**9], [[0], 10**9], [-1, -(10**9)], [2.5], 7):
        manifest["arrays"]["x"][0] = shape
        manifest["digest"] = verified.digest(manifest)
        text = json.dumps(manifest).encode()
        _files.replace_file(tmp_path / "manifest.json", text)
        with pytest.raises(CheckpointError):
            verified.read(tmp_path)


def test_own_log_of_many_members_is_read_a_line_at_a_time(tmp_path):
    """Of which some are in memory, whatever their number."""
    record = json.dumps({"population": [0.123456] * 10_000}).encode() + b"\n"
    (tmp_path / "log").write_bytes(record * 60)
    tracemalloc.start()
    try:
        assert jsonl.count(tmp_path / "log") == 60
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(record)
    assert len(jsonl.read(tmp_path / "log")) == 60


def test_record_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_LINE", 1000)
    log = jsonl.JsonlLogger(tmp_path / "log")
    assert log.log({"population": [0.5] * 100}) == (tmp_path / "log").stat().st_size
    with pytest.raises(ConfigError, match="population_size: the record"):
        log.log({"population": [0.5] * 1000})
    log.close()
    assert jsonl.count(tmp_path / "log") == 1
