"""An engine of real rollout processes, whose other sides are called by the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import counting
import numpy as np
from books import Books
from engine import make_learner

from fastrl.envs.registry import Registered
from fastrl.models.acting import ActingPolicy
from fastrl.shm import Closed
from fastrl.workers.children import Child
from fastrl.workers.crew import Crew
from fastrl.workers.inference import Inference
from fastrl.workers.rollout import RolloutStart
from fastrl.workers.shared import GENERATION_SHIFT, GROUP_MASK
from fastrl.workers.slot_queue import SlotQueue

HANG = 60.0  # seconds without a word from a worker


class Live:
    """Real rollout processes; inference, learner and supervisor are objects of this process.

    A context: it closes the engine at its end, and kills what a failed test has left.
    """

    def __init__(self, folder: Path, **options) -> None:
        self.crew = Crew()
        spec = counting.spec("count:x")
        self.shared, _, self.learner = make_learner(self.crew.arena, spec, **options)
        self.plan = self.shared.plan
        self.inference = Inference(self.shared, ActingPolicy(spec, self.plan.config))
        self.books = Books(folder, self.shared, self.learner)
        cloudpickle.register_pickle_by_value(counting)
        family = counting.booked_family(self.books.path)
        self._registered = cloudpickle.dumps(Registered({"count": family}, {}))
        self.workers: dict[int, Child] = {}
        for worker in range(self.plan.num_workers):
            self._start(worker, 0)

    def _start(self, worker: int, generation: int) -> None:
        plan = self.plan
        self.workers[worker] = self.crew.launch_rollout(
            RolloutStart(worker, generation, plan.config, self._registered, plan)
        )

    def kill(self, worker: int) -> None:
        """Kill a worker's process, whatever it is doing, and wait for its end."""
        victim = self.workers.pop(worker)
        victim.kill()
        assert victim.has_ended(HANG)
        self.crew.discharge(victim)
        self.books.killed(worker)

    def replace(self, worker: int) -> None:
        generation = self.shared.generation.load(worker) + 1
        self.shared.generation.store(worker, generation)
        self._start(worker, generation)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self.shared.close()
        try:
            if error_type is None:
                members = list(self.crew.members)
                assert self.crew.wait_for_end(members, HANG), "a worker did not end at Closed"
                assert all(m.exit_code() == 0 for m in members), [m.story() for m in members]
        finally:
            self.crew.end()


class Turns:
    """The loops of inference and learner, a turn at a time."""

    def __init__(self, live: Live) -> None:
        shared = live.shared
        self._live = live
        self._queue = SlotQueue(shared)
        self._ready, self._acted = shared.inference_inbox(), shared.inference_outbox()
        self._full, self._returned = shared.learner_inbox(), shared.learner_outbox()
        self._words, self._sources = np.zeros(256, np.uint64), np.zeros(256, np.uint32)

    def turn(self) -> None:
        """Wait until somebody has something, then act and train once; at once if all are dead."""
        deadline = time.monotonic() + HANG
        while not (self.act(0.0) | self.train()) and self._live.workers:
            if self.act(0.05):
                break
            assert time.monotonic() < deadline, "no worker has said anything for a minute"

    def act(self, timeout: float) -> bool:
        """Act for the groups that are ready, or become so within `timeout` seconds."""
        live = self._live
        count = self._ready.pop_many(self._words, self._sources, timeout)
        words, workers = self._words[:count].astype(np.int64), self._sources[:count]
        current = words >> GENERATION_SHIFT == live.shared.generation.snapshot()[workers]
        words, workers = words[current], workers[current]
        if len(words):
            live.inference.refresh()
            live.inference.run(words & GROUP_MASK)
            self._acted.push_many(workers, words.astype(np.uint64))
        return count > 0

    def train(self) -> bool:
        """Take in what is full, and train if it is enough for a batch."""
        live, plan = self._live, self._live.plan
        full = self._full.pop_many(self._words, self._sources, timeout=0.0)
        for word in self._words[:full].tolist():
            self._queue.look_at(word & GROUP_MASK)
        if len(self._queue) >= plan.batch_slots:
            slots, dropped = self._queue.take(plan.batch_slots)
            live.learner.train(slots, dropped)
            for group in (slots // plan.slots_per_group).tolist():
                self._returned.push(group // plan.groups_per_worker, group)
        return full > 0


class Background(threading.Thread):
    """A loop of the engine in a thread; `finish` raises what ended it, unless that was Closed."""

    def __init__(self, loop: Callable[..., None], *args: Any) -> None:
        super().__init__(daemon=True)
        self._loop, self._loop_args = loop, args
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._loop(*self._loop_args)
        except Closed:
            pass
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        self.join(HANG)
        assert not self.is_alive(), "the loop has not ended"
        if self._error is not None:
            raise self._error
