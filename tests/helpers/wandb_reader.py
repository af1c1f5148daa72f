"""Reads wandb's offline files: LevelDB log framing around protobuf records."""

import json
import struct

BLOCK = 32768


def records(path):
    """Yields every complete record; a killed process may leave a torn last one."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert struct.unpack("<4sHB", data[:7])[:2] == (b":W&B", 0xBEE1)
    position, parts = 7, []
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        if kind == 0:
            position += left
            continue
        parts.append(data[position + 7 : position + 7 + size])
        position += 7 + size
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def read(directory):
    """History rows, configuration, ids and artifact names of all runs below it."""
    history, config, ids, artifacts = [], {}, set(), []

    def items(found):
        return {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in found
        }

    for path in sorted((directory / "wandb").glob("offline-run-*/*.wandb")):
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                history.append(items(record.history.item))
            elif kind == "run":
                config |= items(record.run.config.update)
                ids.add(record.run.run_id)
            elif kind == "artifact":
                artifacts.append(record.artifact.name)
    return history, config, ids, artifacts
