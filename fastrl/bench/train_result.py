"""What `fastrl-bench train` found: efficiency, and where each microsecond of a step goes.

::

    cores / rate = the core time of one step
                 = per role: its work (the c's) + what it does besides   + idle
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fastrl.bench.costs import KINDS, Cost, Kind, Samples, cheapest, efficiency, work_per_step
from fastrl.bench.processes import MAIN, RoleUse
from fastrl.bench.records import Rate
from fastrl.bench.report import Report, Spread, Table
from fastrl.config import TrainConfig

MEANS = {
    "wait/rollout_action": "share of time that rollout workers wait for actions",
    "wait/rollout_slot": "share of time that rollout workers wait for a free slot",
    "wait/inference": "share of time that inference waits for ready groups",
    "wait/learner": "share of time that the learner waits for full slots",
    "lag/mean": "policy lag, versions",
    "lag/max": "largest policy lag, versions",
    "lag/masked_share": "share of steps too old to train on",
    "inference/batch": "rows in a batch of inference",
    "perf/update_ms": "ms per update",
}
"""Metrics whose means over the measured records are reported."""

WORKERS_OF: dict[Kind, str] = {"env": "rollout", "inf": "inference", "train": "learner"}
"""The role that does each kind of work."""


@dataclass(frozen=True)
class Result:
    """Everything that one measurement found."""

    machine: dict[str, Any]
    command: list[str]
    """What followed `fastrl-bench train`."""
    flags: list[str]
    """Those of fastrl-train."""
    config: TrainConfig
    frame_skip: int
    samples: Samples
    learned: Rate
    sampled: Rate
    roles: dict[str, RoleUse]
    means: dict[str, float]

    @property
    def costs(self) -> dict[Kind, Cost]:
        """The c's."""
        return cheapest(self.samples)

    @property
    def cores(self) -> int:
        """Cores that the engine may use."""
        return int(self.machine["cores"])

    @property
    def work_us(self) -> float:
        """Core time that a step must cost, in µs."""
        return work_per_step(self.costs, self.config.epochs)

    @property
    def limit(self) -> float:
        """Steps per second of a machine that does nothing but that work."""
        return self.cores / (self.work_us * 1e-6)

    @property
    def efficiency(self) -> float:
        """Share of the machine that does that work."""
        return efficiency(self.learned.mean, self.work_us, self.cores)

    @property
    def step_us(self) -> float:
        """Core time of the whole machine per learned step, in µs."""
        return 1e6 * self.cores / self.learned.mean

    def work_of(self, role: str) -> float:
        """Work of a role in one step, in µs: 0 for main."""
        done = [kind for kind, worker in WORKERS_OF.items() if worker == role]
        return sum(
            self.costs[kind].median * (self.config.epochs if kind == "train" else 1)
            for kind in done
        )

    def cpu_of(self, role: str) -> float:
        """CPU time of a role per learned step, in µs."""
        return 1e6 * self.roles[role].cores / self.learned.mean

    def switches_of(self, role: str) -> float:
        """Context switches of a role per learned step."""
        return self.roles[role].switches_per_second / self.learned.mean

    @property
    def idle_cores(self) -> float:
        """Cores that no process of the run was on: idle, or another program's."""
        return self.cores - sum(use.cores for use in self.roles.values())

    @property
    def idle_us(self) -> float:
        """The same per learned step, in µs."""
        return 1e6 * self.idle_cores / self.learned.mean

    def values(self) -> dict[str, Any]:
        """The figures as plain values; costs in µs of a core per step."""
        plain = dataclasses.asdict(self.config) | {"run_dir": None}  # it was a temporary one
        return {
            "flags": self.flags,
            "config": {name: value for name, value in plain.items() if value is not None},
            "efficiency": self.efficiency,
            "work_us_per_step": self.work_us,
            "limit_steps_per_second": self.limit,
            "learned_steps_per_second": dataclasses.asdict(self.learned),
            "sampled_steps_per_second": dataclasses.asdict(self.sampled),
            "learned_frames_per_second": self.learned.mean * self.frame_skip,
            "costs": {
                f"c_{kind}": {
                    **dataclasses.asdict(self.costs[kind].arrangement),
                    **self.costs[kind].spread.as_json(),
                }
                for kind in KINDS
            },
            "core_us_per_step": self.step_us,
            "roles": {
                role: {
                    "work_us_per_step": self.work_of(role),
                    "cpu_us_per_step": self.cpu_of(role),
                    "cores": self.roles[role].cores,
                    "context_switches_per_step": self.switches_of(role),
                }
                for role in self.roles
            },
            "idle": {"cores": self.idle_cores, "us_per_step": self.idle_us},
            "means": self.means,
            "samples": [
                {**dataclasses.asdict(arrangement), "us_per_step": values}
                for arrangement, values in self.samples.items()
            ],
        }

    def report(self) -> Report:
        """All of it for a reader."""
        return Report(
            bench="train",
            flags=self.command,
            units={
                "step": "one action of one environment that had effect",
                "frame": f"frames = steps x {self.frame_skip}",
                "cost": "µs of one core per step",
                "CPU time": "µs in user and kernel mode, of all threads, per learned step",
                "efficiency": "learned steps/s x (c_env + c_inf + epochs·c_train) / cores",
            },
            tables=[
                self._costs_table(),
                self._rates_table(),
                self._means_table(),
                self._roles_table(),
            ],
            values=self.values(),
            draw=self._draw,
            machine=self.machine,
        )

    def _costs_table(self) -> Table:
        best = {cost.arrangement for cost in self.costs.values()}
        rows = []
        for arrangement, values in self.samples.items():
            mark = "*" if arrangement in best else ""
            text = Spread.of(values).text(",.3f")
            rows.append((f"c_{arrangement.kind} {arrangement}", text, mark))
        return Table("Cost of the work on busy cores", ("work", "µs", "cheapest"), rows)

    def _rates_table(self) -> Table:
        epochs = self.config.epochs
        rows = [
            ("work", f"c_env + c_inf + {epochs}·c_train = {self.work_us:,.2f} µs"),
            ("at most", f"{self.limit:,.0f} steps/s on {self.cores} cores"),
            ("learned", str(self.learned)),
            ("sampled", str(self.sampled)),
            ("frames", f"{self.learned.mean * self.frame_skip:,.0f} frames/s learned"),
            ("efficiency", f"{self.efficiency:.3f}"),
        ]
        return Table("The run", ("figure", "value"), rows)

    def _means_table(self) -> Table:
        rows = [(MEANS[name], f"{mean:,.3f}") for name, mean in self.means.items()]
        return Table("Means over the measured time", ("metric", "mean"), rows)

    def _roles_table(self) -> Table:
        rows = []
        for role in self.roles:
            work, cpu = self.work_of(role), self.cpu_of(role)
            rows.append(
                (
                    role,
                    "" if role == MAIN else f"{work:,.2f}",
                    f"{cpu:,.2f}",
                    f"{cpu - work:+,.2f}",
                    f"{cpu / self.step_us:.1%}",
                    f"{self.switches_of(role):,.4f}",
                )
            )
        work, cpu = self.work_us, sum(self.cpu_of(role) for role in self.roles)
        switches = sum(self.switches_of(role) for role in self.roles)
        shares = (cpu / self.step_us, self.idle_us / self.step_us)
        rows += [
            (
                *("together", f"{work:,.2f}", f"{cpu:,.2f}", f"{cpu - work:+,.2f}"),
                *(f"{shares[0]:.1%}", f"{switches:,.4f}"),
            ),
            ("idle, or another program's", "", f"{self.idle_us:,.2f}", "", f"{shares[1]:.1%}", ""),
            ("all cores", "", f"{self.step_us:,.2f}", "", "100.0%", ""),
        ]
        columns = ("role", "its c, µs", "CPU time, µs", "besides, µs", "of cores", "switches")
        return Table("Where the core time of a learned step goes", columns, rows)

    def _draw(self, axes: Any) -> None:
        names = [*self.roles, "idle"]
        at = range(len(names))
        cpu = [*(self.cpu_of(role) for role in self.roles), self.idle_us]
        work = [*(self.work_of(role) for role in self.roles), 0.0]
        axes.barh([y - 0.2 for y in at], cpu, height=0.4, label="CPU time")
        axes.barh([y + 0.2 for y in at], work, height=0.4, label="the work itself (c)")
        axes.set_yticks(list(at), names)
        axes.invert_yaxis()
        axes.set_xlabel(
            f"µs of a core per learned step ({self.learned.mean:,.0f} steps/s, efficiency "
            f"{self.efficiency:.2f})"
        )
        axes.legend()
