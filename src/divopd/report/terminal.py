"""What a run looks like while it goes on: a live view in a terminal, one plain line per event elsewhere."""

import shlex
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from divopd.metrics import final_five, late_batch, peak
from divopd.printable import printable
from divopd.records import BatchFigures, EvaluationRecord, ProgramFigures, UpdateRecord
from divopd.report.fates import told_of_programs
from divopd.report.gauge import WINDOW, QueuePressure, percent, queue_pressure
from divopd.report.health import FEW, Evidence, warnings_of
from divopd.report.run_tables import final_five_text, new_table, plain_console, quantity
from divopd.report.runs import RunFigures, read_run
from divopd.report.unseen import unseen_words
from divopd.store import StoreViews

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from divopd.config import Config

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 40  # evaluations in the sparkline
KINDS = 8  # kinds of tasks that are shown
FULL_LOAD = 4.0  # where the gauge is full
COLOURS = {"starving": "yellow", "late": "yellow", "balanced": "green", "selective": "green", "overfull": "red"}


class TerminalView:
    """Shows a run of `config.learner.updates` updates. It observes the run; call `summary` when it is over."""

    def __init__(self, config: "Config", *, console: "Console | None" = None) -> None:
        self.config = config
        self.console = console or plain_console()
        self._updates: deque[UpdateRecord] = deque(maxlen=WINDOW + 1)
        self._first: list[UpdateRecord] = []  # of the run; a run that goes on does not hear of them again
        self._moments: deque[float] = deque(maxlen=WINDOW + 1)  # when those updates were made, in real seconds
        self._evaluations: list[EvaluationRecord] = []
        self._expired = 0
        self._warned: set[str] = set()  # names of checks
        self._last_report = monotonic()
        self._other_s = 0.0  # of the last update: what was not the learner's
        self._live: Any = None

    def __enter__(self) -> "TerminalView":
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(self._view(), console=self.console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self.console.print(self._title)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def told(self, sentence: str) -> None:
        self.console.print(printable(sentence), soft_wrap=True)

    def updated(self, record: UpdateRecord) -> None:
        # on the live clock updates are heard of late and several at once, so they say themselves when they were made
        now, before = monotonic(), self._last_report
        if record.clock == "wall":
            now, before = record.elapsed_s, self._moments[-1] if self._moments else 0.0
        if record.warning and not (self._updates and self._updates[-1].warning):
            self.console.print(record.warning, soft_wrap=True)  # when it begins, not at every update from then on
        self._updates.append(record)
        self._first += [record] if record.update < FEW else []
        self._moments.append(now)
        self._expired += record.queue.stale + record.queue.aged_out
        self._other_s = max(0.0, now - before - sum(_stages(record).values()))
        self._show(self._update_lines)
        self._warn()

    def evaluated(self, record: EvaluationRecord) -> None:
        self._evaluations.append(record)
        self._show(self._evaluation_lines)
        self._warn()

    def _warn(self, *, unseen: Sequence[str] = (), looked_at: int = 0, programs: ProgramFigures | None = None) -> None:
        """Tell what is probably wrong, each thing once."""
        config = self.config
        updates, beta, first = list(self._updates), config.learner.beta, self._first
        evidence = Evidence(
            updates, self._evaluations, config.composer, beta, unseen, looked_at, first=first, programs=programs
        )
        for name, sentence in warnings_of(evidence).items():
            if name not in self._warned:
                self._warned.add(name)
                self.console.print(f"warning: {sentence}", soft_wrap=True)

    def _show(self, lines: Callable[[], list[str]]) -> None:
        self._last_report = monotonic()
        if self._live is not None:
            self._live.update(self._view(), refresh=True)
        else:
            for line in lines():
                self.console.print(line, soft_wrap=True)

    def summary(self, folder: Path) -> None:
        """Print what the run came to, and where things lie."""
        run = read_run(folder)
        self.console.print(_summary_table(run))
        with StoreViews.open(folder) as store:
            rollout = store.journal(store.updates - 1).selected[0][0]
            unseen, looked_at = unseen_words(store)
        self._warn(unseen=unseen, looked_at=looked_at, programs=run.programs)
        place = shlex.quote(str(folder))
        for line in (
            f"run: {place}",
            f"  divopd compare {place} RUN…",
            f"  divopd explain {place} {len(run.batches) - 1}",
            f"  divopd why {place} {rollout}",
            f"  divopd export {place} --model FOLDER",
        ):
            self.console.print(line, soft_wrap=True)

    # ── what is known ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _title(self) -> str:
        config, command = self.config, self.config.environment.command
        words = [command] if isinstance(command, str) else list(command or ())
        where = f"the program {shlex.join(words)}" if words else config.environment.name
        what = f"{config.method} on {where}, seed {config.seed}, {config.clock} clock"
        return printable(what)

    @property
    def _done(self) -> int:
        return self._updates[-1].update + 1 if self._updates else 0

    @property
    def _pressure(self) -> QueuePressure | None:
        return queue_pressure(list(self._updates), self.config.composer, max_backlog=self.config.explorer.max_backlog)

    @property
    def _time_left(self) -> str:
        if len(self._moments) < 2:
            return "time left unknown"
        each = (self._moments[-1] - self._moments[0]) / (len(self._moments) - 1)
        return f"{duration(each * (self.config.learner.updates - self._done))} left"

    # ── plain lines ───────────────────────────────────────────────────────────────────────────────────────────────

    def _update_lines(self) -> list[str]:
        pressure = self._pressure
        parts = [
            f"update {self._done}/{self.config.learner.updates}",
            _composition(self._updates[-1].batch),
            _exits(self._updates[-1]),
            f"log probs {_gap(self._updates[-1])}",
            *([f"load {pressure.load:.1f}×"] if pressure else []),
            self._time_left,
        ]
        return ["; ".join(parts)]

    def _evaluation_lines(self) -> list[str]:
        last = self._evaluations[-1]
        kinds = _kinds(last)
        line = f"version {last.version}: success rate {last.success_rate:.1f} % of {last.tasks} tasks"
        pressure = self._pressure
        advice = [f"  queue: {pressure.sentence}"] if pressure else []
        return [f"{line} ({kinds})" if kinds else line, *advice]

    # ── the live view ─────────────────────────────────────────────────────────────────────────────────────────────

    def _view(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        grid.add_row("success rate", Text(self._success_rate()))
        if self._updates:
            last = self._updates[-1]
            grid.add_row("queue", self._gauge())
            grid.add_row("batch", Text(_composition(last.batch)))
            grid.add_row("turns", Text(f"{_exits(last)}; {self._expired} expired so far"))
            grid.add_row("log probs", Text(_gap(last)))
            grid.add_row("seconds", Text(self._seconds()))
        total = self.config.learner.updates
        progress = Table.grid(padding=(0, 2))
        progress.add_row(
            ProgressBar(total=total, completed=self._done, width=30),
            Text(f"update {self._done}/{total}, {self._time_left}"),
        )
        return Group(Text(self._title, style="bold"), grid, progress)

    def _success_rate(self) -> str:
        if not self._evaluations:
            return "not evaluated yet"
        rates = [evaluated.success_rate for evaluated in self._evaluations]
        last = self._evaluations[-1]
        line = f"{rates[-1]:.1f} %  {sparkline(rates)}  version {last.version}, best {max(rates):.1f} %"
        kinds = _kinds(last)
        return f"{line}\n{kinds}" if kinds else line

    def _gauge(self) -> "RenderableType":
        from rich.text import Text

        pressure = self._pressure
        if pressure is None:
            return Text("too early to tell")
        filled = min(10, round(10 * pressure.load / FULL_LOAD))
        bar = ("█" * filled, COLOURS[pressure.verdict]), ("░" * (10 - filled), "dim")
        return Text.assemble(*bar, f" {pressure.load:.1f}×  {pressure.sentence}")

    def _seconds(self) -> str:
        other = "wait, compose, publish" if self.config.clock == "live" else "explore, score, compose"
        last = self._updates[-1]
        stages = _stages(last) | {other: self._other_s}
        shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items())
        starved = f", of it {last.starved_s:.1f} with nothing to train" if last.starved_s else ""
        if last.learner and last.learner.processor_s:
            shown += f" (learner: {sum(last.learner.processor_s.values()):.1f} of a processor)"
        return f"{shown}; waited {last.waited_s:.1f} {last.clock} seconds{starved}" if last.waited_s else shown


def sparkline(rates: Sequence[float]) -> str:
    """The last rates as small bars, from 0 to the largest of them."""
    shown = rates[-SPARKS:]
    top = max(shown) or 1.0
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * rate / top)] for rate in shown)


def duration(seconds: float) -> str:
    """A time that a person waits for."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _stages(record: UpdateRecord) -> dict[str, float]:
    """Real seconds of the learner by stage."""
    return dict(record.learner.seconds) if record.learner else {}


def _composition(batch: BatchFigures) -> str:
    return (
        f"{batch.effective_rollouts:.1f} effective rollouts, largest {percent(batch.top1_share)} of tokens, "
        f"{percent(batch.dead_share)} dead rows, KL {batch.kl_per_token:.3f} a token"
    )


def _exits(record: UpdateRecord) -> str:
    queue, dead = record.queue, round(record.batch.dead_share * record.batch.rows)
    return (
        f"{record.batch.rows - dead} trained, {dead} dead, {queue.stale} stale, {queue.aged_out} aged out, "
        f"{queue.invalid} invalid, {queue.queued} queued"
    )


def _gap(record: UpdateRecord) -> str:
    gap = record.learner.logprob_gap if record.learner else None
    if gap is None:
        return "not compared"
    age = record.update - gap.version
    return f"{gap.mean:.1e} nats from those at generation {age} updates ago, {gap.largest:.1e} at most"


def _kinds(record: EvaluationRecord) -> str:
    """Success rates by kind of task; nothing where all tasks are of one kind."""
    kinds = record.by_kind
    if len(kinds) < 2:
        return ""
    more = f", and {len(kinds) - KINDS} kinds more" if len(kinds) > KINDS else ""
    return ", ".join(f"{printable(kind)} {rate:.0f} %" for kind, rate in list(kinds.items())[:KINDS]) + more


def _summary_table(run: RunFigures) -> "RenderableType":
    table = new_table(f"{printable(run.name)}: {run.method}, seed {run.seed}", ["", ""], texts=2)
    table.show_header = False
    for what, figures in _summary_rows(run).items():
        table.add_row(what, figures)
    return table


def _summary_rows(run: RunFigures) -> dict[str, str]:
    costs, used = run.costs, run.utilization
    rows = {
        "updates": f"{len(run.batches)} in {duration(costs.elapsed_s)} of {run.clock} time",
        "tokens": f"{quantity(costs.trained_tokens)} trained ({quantity(costs.computed_tokens)} computed), "
        f"{quantity(costs.scored_tokens)} scored, {quantity(costs.generated_tokens)} generated",
        "rollouts": f"{used.never_selected:.1%} of {used.rollouts} never selected (bound {used.unreachable:.1%}), "
        f"Gini {used.gini:.2f}",
        "late batches": _composition(late_batch(run.batches)),
        "turns": f"{run.account.put} put: "
        + ", ".join(f"{turns} {fate.replace('_', ' ')}" for fate, turns in run.fates.items() if turns),
    }
    if run.programs is not None:
        rows["programs"] = told_of_programs(run.programs)
    if not run.evaluations:
        return rows
    first, last = run.evaluations[0], run.evaluations[-1]
    success = (
        f"{first.success_rate:.1f} % at version {first.version}, {last.success_rate:.1f} % at version {last.version}; "
        f"peak {peak(run.rates):.1f} %, last five {final_five_text(*final_five(run.rates))} %"
    )
    return {"success rate": success} | rows
