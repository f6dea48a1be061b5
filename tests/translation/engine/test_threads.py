"""Threads on a machine that others use, too. What others do is told by clocks; PyTorch's threads are real."""

import os
import threading
import time

import pytest
import torch

from reluformer.translation.engine import threads as module
from reluformer.translation.engine.threads import PERIOD, PERIODS, Clocks, Threads, clocks, cores_between


@pytest.fixture
def machine(monkeypatch):
    """Four cores of which others take some from now on, and PyTorch with four threads that never rest."""

    class Machine:
        wall, idle, own, others = 100.0, 0.0, 0.0, 0.0

        def passes(self, seconds=PERIOD):
            self.wall += seconds
            self.own += seconds * min(torch.get_num_threads(), 4 - self.others)
            self.idle += seconds * max(0, 4 - self.others - torch.get_num_threads())

        def clocks(self):
            return Clocks(self.wall, self.idle, self.own)

    found = Machine()
    monkeypatch.setattr(module, "clocks", found.clocks)
    monkeypatch.setattr(module, "_BEGAN", found.clocks())
    monkeypatch.setattr(time, "monotonic", lambda: found.wall)
    torch.set_num_threads(4)
    return found


@pytest.mark.parametrize(
    ("others", "threads"), [(0.0, 4), (0.2, 4), (0.3, 3), (1.0, 3), (2.9, 1), (4.0, 1)], ids="{:.1f}".format
)
def test_as_many_as_there_are_cores_for(others, threads, machine):
    machine.others = others
    machine.passes()
    with Threads() as taken:
        assert torch.get_num_threads() == threads
        for _ in range(5):  # whatever it takes itself does not count
            machine.passes()
            taken.follow()
            assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 4  # those of the caller


def test_fewer_at_once_and_more_after_a_while(machine):
    with Threads() as taken:
        machine.passes()
        taken.follow()
        machine.others = 2.0
        machine.passes()
        taken.follow()
        assert torch.get_num_threads() == 2
        machine.others = 0.0
        for _ in range(PERIODS - 1):
            machine.passes()
            taken.follow()
            assert torch.get_num_threads() == 2
        machine.passes()
        taken.follow()
        assert torch.get_num_threads() == 4
        assert taken.fewest == 2


def test_remembers_between_searches(machine):
    machine.others = 3.0
    machine.passes()
    threads = Threads()
    with threads:
        pass
    with threads:  # no time has passed
        assert torch.get_num_threads() == 1


def test_never_more_than_the_caller_has(machine):
    torch.set_num_threads(2)
    machine.passes()
    with Threads():
        assert torch.get_num_threads() == 2


def test_caller_has_them_back_after_an_error(machine):
    machine.others = 3.0
    machine.passes()
    with pytest.raises(KeyboardInterrupt), Threads():
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 4


def test_threads_of_a_program_do_not_mind_each_other(machine):
    """Whoever begins while another is at it gives back what it had itself."""
    machine.others = 3.0
    machine.passes()
    threads = Threads()
    had: list[int] = []

    def search():
        torch.set_num_threads(3)
        with threads:
            had.append(torch.get_num_threads())
        had.append(torch.get_num_threads())

    with threads:
        other = threading.Thread(target=search)
        other.start()
        other.join()
        assert had == [1, 3]
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4


def test_looks_no_more_often_than_it_must(machine, monkeypatch):
    with Threads() as taken:
        machine.passes()
        taken.follow()
        monkeypatch.setattr(module, "clocks", lambda: pytest.fail("looked again"))
        machine.passes(PERIOD / 2)
        taken.follow()


def test_a_system_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(module, "_BEGAN", None)
    monkeypatch.setattr(module, "clocks", lambda: pytest.fail("asked all the same"))
    torch.set_num_threads(3)
    with Threads() as taken:
        taken.follow()
        assert torch.get_num_threads() == 3


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux counts idle time so")
def test_clocks_of_this_machine():
    first = clocks()
    while sum(x * x for x in range(1000)) and time.monotonic() - first.wall < 0.1:
        pass
    last = clocks()
    assert last.wall - first.wall >= 0.1
    assert last.own - first.own > 0
    assert 0 <= last.idle - first.idle <= len(os.sched_getaffinity(0)) * (last.wall - first.wall) + 0.1
    assert 1 <= cores_between(first, last) <= len(os.sched_getaffinity(0)) + 1


def test_clocks_without_proc(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert clocks() is None
