"""Waiting for hosts and messages: it ends when asked to, and leaves nothing behind."""

import types

import pytest

from metaevo.errors import InterruptedRunError
from metaevo.evaluators import _messages, ray_hosts


@pytest.fixture
def no_hosts(monkeypatch):
    """A Ray cluster to which no host comes; returns what was called on it."""
    closed = []
    ray = types.SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **_: None,
        nodes=lambda: [{"NodeID": "head", "Alive": True, "Resources": {}}],
        shutdown=lambda: closed.append("shutdown"),
    )
    monkeypatch.setattr(ray_hosts, "import_ray", lambda: ray)
    return closed


def test_waiting_for_a_first_host_is_said_and_ends_when_asked(
    no_hosts, monkeypatch, capsys
):
    monkeypatch.setattr(ray_hosts, "SILENCE", 0.05)
    asked = []

    def should_stop():
        asked.append(1)
        return len(asked) > 10

    with pytest.raises(InterruptedRunError), ray_hosts.pool("auto", should_stop):
        pass
    assert capsys.readouterr().out.count("no host of the Ray cluster is up") == 1
    assert no_hosts == ["shutdown"]


def test_messages_are_deleted_once_all_have_read_them(monkeypatch):
    held, barriers = {}, []

    class Client:
        key_value_set = staticmethod(held.__setitem__)
        key_value_delete = staticmethod(held.pop)

        @staticmethod
        def wait_at_barrier(name, limit):
            barriers.append(dict(held))

    monkeypatch.setattr(_messages, "distributed_client", Client)
    monkeypatch.setattr(_messages, "_sent", [])
    for _ in range(3):
        _messages.send({"do": "begin"})
        _messages.send({"do": "__call__"})
        _messages.barrier()
        assert held == {}
    assert [len(x) for x in barriers] == [2, 2, 2]
