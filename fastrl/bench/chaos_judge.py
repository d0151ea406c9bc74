"""What is expected of a run of `fastrl-bench chaos`, and how fast it reacted.

::

    Outcome ─▶ judge: sentences, one per broken promise
            ─▶ reactions: seconds from each signal to what it led to

The promises, by whom the signal reached once training had begun:

- a rollout worker: it is replaced, the console says so, and the run ends with 0; with 1 where more
  have died than `--max-worker-restarts`;
- the learner, inference, the forkserver: the run ends with 1, and its last lines name who died and
  of which signal; with `--max-restarts` the engine is started again, which is said, and the run
  ends with 0;
- main: all others are gone within 2 s;
- anyone, by SIGSTOP and SIGCONT: nobody dies, and the run ends with 0.

Before, a kill may end the run with 1 and a sentence that names who died. In every case the run
reacts within 10 s and leaves nothing behind.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from fastrl.bench.chaos_plan import ENGINE_ENDS
from fastrl.bench.chaos_run import (
    AGAIN,
    ALONE_SECONDS,
    FINISHED,
    HANG_SECONDS,
    Delivered,
    Line,
    Outcome,
)
from fastrl.bench.family import FORKSERVER
from fastrl.bench.processes import MAIN

MOST_WORKER_RESTARTS = 10
"""`--max-worker-restarts` where it is not given."""
TOGETHER_SECONDS = 1.0
"""What happens within this time may be seen by main at once: two deaths, or a death and the end of
training."""

FAILED = "failed: "
UNKNOWN = "ended with an unknown exit code"
NAMES = {
    "rollout": "rollout worker",
    "learner": "learner",
    "inference": "inference",
    FORKSERVER: "forkserver",
}
"""How sentences name a role, whatever the case."""


def judge(outcome: Outcome) -> list[str]:
    """Sentences about everything that a run was not meant to do; empty where there is nothing."""
    found = []
    if outcome.hang is not None:
        found.append(f"hang: {outcome.hang}")
    else:
        found += _judge_end(outcome)
        found += _judge_reactions(outcome)
        found += _judge_deaths(outcome)
    found += [f"outlived main by {ALONE_SECONDS:g} s: {text}" for text in outcome.left]
    found += [f"left in /dev/shm: {name}" for name in outcome.shared_memory]
    found += outcome.damaged
    if outcome.resumed is not None:
        found += [f"resumed: {text}" for text in judge(outcome.resumed)]
    return found


def allowed_codes(outcome: Outcome) -> set[int]:
    """Exit codes with which the run may end, after what reached it."""
    allowed, plan = {0}, outcome.plan
    most_workers = MOST_WORKER_RESTARTS if plan.worker_restarts is None else plan.worker_restarts
    workers, least, most = 0, 0, 0  # deaths of workers; of the engine, at least and at most
    before: float | None = None
    for one in _kills(outcome):
        late = is_late(outcome, one)
        role = one.fault.role
        if role == MAIN:
            code = -signal.Signals[one.fault.signal]
            allowed = allowed | {code} if late else {code}
            continue
        if role == "rollout":
            workers += 1
            must, may = workers > most_workers, not one.training
        else:
            most += 1
            # Two deaths between which the engine was not started again may be one to main.
            if before is None or any(before < line.at < one.at for line in outcome.said(AGAIN)):
                least += 1
            before = one.at
            # A forkserver that nobody watches yet is started once more by multiprocessing.
            unseen = not one.training and role == FORKSERVER
            must = least > plan.restarts and not unseen
            may = most > plan.restarts or not one.training
        if must and not late:
            allowed = {1}
        elif must or may or (late and role != "rollout"):
            allowed = allowed | {1}
    return allowed


def is_late(outcome: Outcome, one: Delivered) -> bool:
    """Whether a signal came when the learner had finished, or so shortly before that nobody needs
    to see it."""
    return any(line.at < one.at + TOGETHER_SECONDS for line in outcome.said(FINISHED))


def is_overtaken(outcome: Outcome, one: Delivered) -> bool:
    """Whether another death was ending the engine already, or did at the same time."""
    for other in _kills(outcome):
        if other is one or other.fault.role == "rollout":
            continue
        if 0 <= other.at - one.at < TOGETHER_SECONDS:
            return True
        if other.at < one.at and not any(
            other.at < line.at < one.at for line in outcome.said(AGAIN)
        ):
            return True
    return False


def reactions(outcome: Outcome) -> list[float | None]:
    """Seconds from each delivered signal (of a pause, from SIGCONT) to what it led to.

    To the line that says who was replaced, or that the engine is started again; else to the end:
    of main, of the last process where main was killed, and of a pause to the next learned step.
    None where nothing was to come of it. Time for which a process was stopped does not count.
    """
    claimed: set[int] = set()
    found: list[float | None] = []
    end: float | None
    for one in outcome.delivered:
        fault = one.fault
        if fault.signal == "SIGSTOP":
            end = one.answered or outcome.ended
            # Before training the next step comes when it comes.
            found.append(max(0.0, end - one.over) if one.training else None)
            continue
        if fault.role == MAIN:
            found.append(outcome.alone - one.at)
            continue
        line = _answer(outcome, one, claimed)
        if line is not None:
            claimed.add(id(line))
            end = line.at
        elif outcome.code == 1:
            end = outcome.ended
        else:
            end = None
        found.append(None if end is None else end - one.at - _stopped(outcome, one.at, end))
    return found


def _answer(outcome: Outcome, one: Delivered, claimed: set[int]) -> Line | None:
    """The line that answers a kill, if there is one; each answers one kill."""
    for line in outcome.lines:
        if line.at < one.at or id(line) in claimed:
            continue
        if one.fault.role == "rollout":
            named = _names(line.text, one) or (
                UNKNOWN in line.text and _parent_stopped(outcome, one)
            )
            if named and "replaced" in line.text:
                return line
        elif AGAIN in line.text:
            return line
    return None


def _parent_stopped(outcome: Outcome, one: Delivered) -> bool:
    """Whether the forkserver was stopped when a worker of its died: it alone can know how."""
    return any(
        other.fault.role == FORKSERVER
        and other.fault.signal == "SIGSTOP"
        and other.at < one.at + TOGETHER_SECONDS
        and one.at < other.over
        for other in outcome.delivered
    )


def _judge_end(outcome: Outcome) -> list[str]:
    """The exit code, and the words of a failure."""
    found = []
    code, allowed = outcome.code, allowed_codes(outcome)
    if code not in allowed:
        found.append(
            f"ended with exit code {code}; expected {' or '.join(map(str, sorted(allowed)))}"
        )
    last = last_words(outcome.lines)
    if code == 0 and not any(outcome.said(FINISHED)):
        found.append(f"ended with 0 and never said {FINISHED!r}")
    if code == 1 and 1 in allowed:
        blamed = [one for one in _kills(outcome) if one.fault.role != MAIN]
        if not last:
            found.append(f"ended with 1 without a sentence after {FAILED!r}")
        elif not any(_blames(last, one) for one in blamed):
            found.append(f"its last words name nobody of those killed, and how: {last[0]}")
    if not last and any(outcome.said("Traceback (most recent call last)")):
        found.append("a traceback without a sentence that says who died")
    return found


def _judge_reactions(outcome: Outcome) -> list[str]:
    """How fast each fault was answered, and whether it was said."""
    found = []
    for one, seconds in zip(outcome.delivered, reactions(outcome), strict=True):
        fault = one.fault
        if fault.signal == "SIGSTOP":
            continue
        bound = ALONE_SECONDS if fault.role == MAIN else HANG_SECONDS
        if seconds is not None and seconds > bound:
            found.append(f"{fault}: answered after {seconds:.1f} s; at most {bound:g}")
        overtaken = is_overtaken(outcome, one)
        if seconds is None and one.training and not overtaken and not is_late(outcome, one):
            found.append(f"{fault}: the console never said that it was made up for")
        elif fault.role in ENGINE_ENDS and outcome.code == 0 and one.training and not overtaken:
            said = any(line.at >= one.at and _names(line.text, one) for line in outcome.lines)
            if not said and not is_late(outcome, one):
                found.append(f"{fault}: the console never named it and the signal")
    return found


def _judge_deaths(outcome: Outcome) -> list[str]:
    """No process may have died that nobody killed."""
    kills = [one.fault.role for one in _kills(outcome)]
    replaced = sum(1 for line in outcome.said("replaced") if "orker" in line.text)
    again = sum(1 for _ in outcome.said(AGAIN))
    found = []
    if replaced > kills.count("rollout"):
        found.append(f"{replaced} workers were replaced, {kills.count('rollout')} were killed")
    if again > sum(role in ENGINE_ENDS for role in kills):
        found.append(f"the engine was started again {again} times, more often than it was killed")
    if not kills and last_words(outcome.lines):
        found.append(f"nobody was killed, and it failed: {last_words(outcome.lines)[0]}")
    return found


def last_words(lines: Sequence[Line]) -> list[str]:
    """The output from its last sentence of failure on; empty where there is none."""
    texts = [line.text for line in lines]
    # Not only at a line's begin: what a child leaves on stderr may end without a newline.
    starts = [place for place, text in enumerate(texts) if FAILED in text]
    return texts[starts[-1] :] if starts else []


def _kills(outcome: Outcome) -> list[Delivered]:
    return [one for one in outcome.delivered if one.fault.signal != "SIGSTOP"]


def _names(text: str, one: Delivered) -> bool:
    """Whether a text says who died, and by which signal."""
    return NAMES[one.fault.role] in text.lower() and one.fault.signal in text


def _blames(words: Sequence[str], one: Delivered) -> bool:
    """Whether the last words of a run say of a kill what they must."""
    text = " ".join(words)
    if one.training:
        return _names(text, one)
    # While it starts, main may see the forkserver's children end before itself.
    roles = [one.fault.role] + (["rollout"] if one.fault.role == FORKSERVER else [])
    return any(NAMES[role] in text.lower() for role in roles)


def _stopped(outcome: Outcome, first: float, last: float) -> float:
    """Seconds between two moments for which some process was stopped."""
    return sum(
        max(0.0, min(last, one.over) - max(first, one.at))
        for one in outcome.delivered
        if one.fault.pause
    )
