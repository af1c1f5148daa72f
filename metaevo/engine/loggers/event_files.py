"""Read back which generations TensorBoard's event files hold.

A process that is killed leaves records unwritten, and the last one cut. The files may
be a stranger's: whatever is no record ends a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MAX_RECORD = 1 << 20  # bytes; of scalars. A picture may have more.
TAG = "fitness_mean"  # in the record of every generation


def steps(folder: Path) -> set[int]:
    """Return the generations whose scalars TensorBoard shows of a folder.

    A process that starts at a generation has TensorBoard drop it and later ones of the
    processes before.

    Args:
        folder: it need not exist.
    """
    from tensorboardX.proto import event_pb2

    proto: Any = event_pb2  # its names are made when it is imported
    events = []
    for path in sorted(folder.glob("events*")):
        if path.is_symlink() or not path.is_file():
            continue
        with open(path, "rb") as file:
            for data in _records(file, path.stat().st_size):
                try:
                    event = proto.Event.FromString(data)
                except Exception:  # protobuf's errors have no common base
                    break
                started = event.session_log.status == proto.SessionLog.START
                if started or any(x.tag == TAG for x in event.summary.value):
                    events.append((event.step, started))
    found, dropped = set(), float("inf")
    for step, started in reversed(events):
        if started:
            dropped = min(dropped, step)
        elif step < dropped:
            found.add(step)
    return found


def _records(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The records of a file of `size` bytes, without those of pictures.

    A record is its length in 8 bytes, a checksum of these in 4, the data, and a
    checksum of the data in 4.
    """
    from tensorboardX.record_writer import masked_crc32c

    position = 0
    while position + 16 <= size:
        file.seek(position)
        head = file.read(12)
        length, checksum = struct.unpack("<QI", head)
        position += 16 + length
        if position > size or masked_crc32c(head[:8]) != checksum:
            return
        if length <= MAX_RECORD:
            yield file.read(length)
