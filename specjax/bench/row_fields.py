"""The row of a cell: what its runs say, in the fields of a results folder."""

from typing import Any, NamedTuple

import numpy as np

from specjax import prompts
from specjax.bench.costs import Costs
from specjax.bench.measure import Log, Run
from specjax.sampling import Automaton
from specjax.stats import metrics
from specjax.stats.row import TIMES, by_batch, names, times_of
from specjax.types import Counts

_BINS = 4
NO_SPEED = dict.fromkeys(names(TIMES))  # of a run without times


class Alpha(NamedTuple):
  """A mean over prefixes that the target generated, by prompt."""

  overlap: np.ndarray  # [P] sums
  prefixes: np.ndarray  # [P]
  turns: tuple['Alpha', ...] = ()  # of each turn alone, of conversations

  @property
  def played(self) -> 'Alpha':
    """That of the prompts that had such a turn."""
    some = self.prefixes > 0
    return Alpha(self.overlap[some], self.prefixes[some])

  @property
  def estimate(self) -> metrics.Estimate:
    return metrics.ratio(self.overlap, self.prefixes).clipped(0.0, 1.0)


def alpha_of(runs: list[Run], prompts: int) -> Alpha:
  """Alpha of runs that drafted one token a step and accepted none.

  Args:
    runs: their rows are the prompts, in order; more are not looked at.
    prompts: how many there are.
  """
  counts = join(runs)
  return Alpha(
    counts.overlap[:prompts],
    counts.histogram[:prompts].sum(1),
    tuple(alpha_of(turn, prompts) for turn in split(runs)),
  )


def split(runs: list[Run]) -> list[list[Run]]:
  """Returns the runs of each turn; batches without it are left out."""
  last = max(len(run.turns) for run in runs)
  return [
    [run.turns[turn] for run in runs if turn < len(run.turns)]
    for turn in range(last)
  ]


def join(runs: list[Run]) -> Counts:
  """Joins the counts of all prompts, rows first."""
  columns = zip(*(r.counts for r in runs), strict=True)
  return Counts(*(np.concatenate(c) for c in columns))


def _join_logs(logs: list[Log]) -> Log:
  """Logs below one another; shorter ones end in steps that nobody took."""
  longest = max(log.accepted.shape[1] for log in logs)

  def column(name, fill):
    parts = [getattr(log, name) for log in logs]
    return np.concatenate(
      [
        np.pad(p, ((0, 0), (0, longest - p.shape[1])), constant_values=fill)
        for p in parts
      ]
    )

  return Log(column('accepted', -1), column('drafted', 0), column('length', 0))


def which(said: list) -> dict[str, Any]:
  """Names the prompts of a row: all together, and each as a unit."""
  units = [prompts.digest([one]) for one in said]
  return {'prompts_hash': prompts.digest(said), 'unit_prompts': units}


def language(automaton: Automaton | None, runs: list[Run], eos) -> dict:
  """Says what constrained the texts, and how many ended by themselves.

  The others were cut: each is the beginning of a text of the language.

  Raises:
    RuntimeError: one is not.
  """
  if automaton is None:
    return {}
  played = [one for run in runs for one in run.turns or [run]]
  texts = [text for one in played for text in one.texts if text]
  for text in texts:
    if automaton.follow(text) < 0:
      raise RuntimeError(f'a text is none of {automaton.what}: {text}')
  return {
    'constraint': {
      'what': automaton.what,
      'states': len(automaton.next),
      'classes': automaton.next.shape[1],
    },
    'ended': sum(text[-1] in eos for text in texts) / len(texts),
  }


def by_step(runs: list[Run]) -> dict[str, Any]:
  """Returns what needs a log: acceptance along the text, and its memory."""
  if runs[0].log is None:
    return {'acceptance_by_context': None, 'autocorrelation': None}
  log = _join_logs([r.log for r in runs if r.log is not None])
  whole = log.accepted >= 0
  bins: list[dict] = []
  if whole.any():
    lengths = log.length[whole]
    edges = np.linspace(lengths.min(), lengths.max() + 1, _BINS + 1).round()
    bins = metrics.by_context(*log, np.unique(edges.astype(int)))
  memory = metrics.autocorrelation(log.accepted)
  return {
    'acceptance_by_context': bins,
    'autocorrelation': [[e.value, e.low, e.high] for e in memory],
  }


def acceptance(runs: list[Run], alpha: Alpha, under_rule: Alpha) -> dict:
  """Returns the fields that do not depend on the machine.

  Args:
    runs: of the method, all prompts of the domain.
    alpha: mean of the overlap of p and q.
    under_rule: mean of the chance that the rule accepts a first token.
  """
  counts = join(runs)
  depth = counts.histogram.shape[1] - 1
  most = depth + 1
  tau = metrics.ratio(counts.tokens, counts.target_calls).clipped(1, most)
  per_request = metrics.tau_per_request(counts.tokens, counts.target_calls)
  unconditional, conditional = metrics.by_position(counts)
  lengths = np.arange(most)
  unit_accepted = (counts.histogram * lengths).sum(1)
  unit_steps = counts.histogram.sum(1)
  without_bonus = metrics.ratio(unit_accepted, unit_steps).clipped(0, depth)
  per_step = metrics.tau_per_step(unit_accepted, unit_steps).clipped(1, most)
  tried, drafted = int(counts.tried.sum()), int(counts.drafted.sum())
  accepted, steps = int(counts.accepted.sum()), int(unit_steps.sum())
  return {
    'tokens': int(counts.tokens.sum()),
    'target_calls': int(counts.target_calls.sum()),
    'steps': sum(r.steps for r in runs),
    'drafted': drafted,
    'accepted': accepted,
    'coverage': 1 - counts.misses.sum() / steps if steps else None,
    'alpha': alpha.estimate.value,
    'alpha_ci': alpha.estimate.interval,
    'alpha_of_rule': under_rule.estimate.value,
    'alpha_of_rule_ci': under_rule.estimate.interval,
    'alpha_mle': accepted / tried if tried else None,
    'acceptance': accepted / drafted if drafted else None,
    'acceptance_by_position': unconditional,
    'acceptance_by_position_conditional': conditional,
    'histogram': counts.histogram.sum(0).tolist(),
    'tau': tau.value,
    'tau_ci': tau.interval,
    'tau_per_request': per_request.value,
    'tau_per_request_ci': per_request.interval,
    'tau_per_step': per_step.value,
    'tau_per_step_ci': per_step.interval,
    'tau_without_bonus': without_bonus.value,
    'tau_without_bonus_ci': without_bonus.interval,
    **by_step(runs),
    'unit_tokens': counts.tokens.tolist(),
    'unit_target_calls': counts.target_calls.tolist(),
    'unit_accepted': unit_accepted.tolist(),
    'unit_steps': unit_steps.tolist(),
    'unit_histogram': counts.histogram.tolist(),
    'unit_overlap': alpha.overlap.round(4).tolist(),
    'unit_overlap_of_rule': under_rule.overlap.round(4).tolist(),
    'unit_prefixes': alpha.prefixes.tolist(),
  }


def _time(run: Run) -> tuple[float, int]:
  """Seconds and new tokens of a batch."""
  return run.seconds, int(run.counts.tokens.sum())


def by_turn(runs: list[Run], alpha: Alpha, base: list[Run] | None) -> dict:
  """Returns what each turn of conversations adds; {} without turns.

  Args:
    runs: of the method.
    alpha: of the same conversations.
    base: runs of plain decoding, where time was taken.
  """
  if not runs[0].turns:
    return {}
  entries = []
  for turn, here in enumerate(split(runs)):
    counts, mean = join(here), alpha.turns[turn].played.estimate
    played = counts.tokens > 0
    tau = metrics.ratio(counts.tokens[played], counts.target_calls[played])
    tau = tau.clipped(1, counts.histogram.shape[1])
    entry = {
      'turn': turn + 1,
      'texts': int(played.sum()),
      'tokens': int(counts.tokens.sum()),
      'target_calls': int(counts.target_calls.sum()),
      'tau': tau.value,
      'tau_ci': tau.interval,
      'alpha': mean.value,
      'alpha_ci': mean.interval,
    }
    if base:
      times = [
        (*_time(plain), *_time(run))
        for plain, run in zip(split(base)[turn], here, strict=True)
      ]
      speedup = metrics.speedup(*np.array(times, float).T)
      entry |= {'speedup': speedup.value, 'speedup_ci': speedup.interval}
    entries.append(entry)
  return {
    'texts': sum(entry['texts'] for entry in entries),
    'by_turn': entries,
    'shortened': sum(run.shortened for run in runs),
  }


class Units(NamedTuple):
  """Sums over the prompts of every batch, in the order of the batches."""

  base_seconds: np.ndarray
  base_tokens: np.ndarray
  seconds: np.ndarray
  tokens: np.ndarray
  calls: np.ndarray


def units_of(row: dict) -> Units:
  """Returns the batches of a row that has times."""
  return Units(*times_of(row), by_batch(row, 'unit_target_calls'))


def speeds(units: Units, cost: Costs) -> dict:
  """Speed-up, measured and predicted, with intervals over the batches."""
  *times, calls = units
  speedup = metrics.speedup(*times)
  of_rates = metrics.speedup_of_rates(*times)
  predicted = cost.predict(units.tokens, calls)
  agreement = cost.agreement(*units)
  return {
    'speedup': speedup.value,
    'speedup_ci': speedup.interval,
    'speedup_of_rates': of_rates.value,
    'speedup_of_rates_ci': of_rates.interval,
    'predicted_speedup': predicted.value,
    'predicted_speedup_ci': predicted.interval,
    'measured_over_predicted': agreement.value,
    'measured_over_predicted_ci': agreement.interval,
  }


def speed(runs: list[Run], base: list[Run], cost: Costs) -> dict:
  """Returns the fields that depend on the machine, over batches."""

  def column(name, runs=runs):
    return [int(n) for r in runs for n in getattr(r.counts, name)]

  units = {
    'unit_seconds': [float(r.seconds) for r in runs],
    'unit_baseline_seconds': [float(r.seconds) for r in base],
    'unit_baseline_tokens': column('tokens', base),
  }
  batch = len(runs[0].texts)  # Only the last one may be smaller.
  counts = {
    'unit_tokens': column('tokens'),
    'unit_target_calls': column('target_calls'),
  }
  sums = units_of(units | counts | {'batch': batch})
  return {
    'seconds': sums.seconds.sum(),
    'prefill_seconds': sum(r.prefill_seconds for r in runs),
    'tokens_per_second': sums.tokens.sum() / sums.seconds.sum(),
    'baseline_tokens_per_second': (
      sums.base_tokens.sum() / sums.base_seconds.sum()
    ),
    'c': cost.c,
    'v': cost.v,
    'seconds_per_step': cost.seconds(),
    **speeds(sums, cost),
    **waiting(runs, base, cost),
    **units,
  }


class Batches(NamedTuple):
  """Sums over the rows of every batch, [n] each.

  The rows of a batch take the steps of the loop together, and the batch ends
  with its last row. A row that has ended waits; nothing takes its place.

    steps of the loop   1 2 3 4 5
    row 0               x x x x x    at work in 5 of 5
    row 1               x x x . .    at work in 3 of 5: in 8 of 10 together
  """

  seconds: np.ndarray
  tokens: np.ndarray
  calls: np.ndarray
  steps: np.ndarray  # of the loop
  rows: np.ndarray  # that have a prompt

  @property
  def places(self) -> np.ndarray:
    """Steps of every row, at work or not."""
    return self.steps * self.rows

  @property
  def at_work(self) -> float:
    """Share of the places in which a row was at work."""
    return float(self.calls.sum() / self.places.sum())

  @property
  def latency(self) -> metrics.Estimate:
    """Seconds per token of a row, until it ends.

    All steps of a batch take alike, so a row's time is that of as many steps.
    """
    return metrics.ratio(self.seconds * self.calls / self.steps, self.tokens)


def batches_of(runs: list[Run]) -> Batches:
  """Returns the sums of some batches."""
  columns = [
    (
      run.seconds,
      run.counts.tokens.sum(),
      run.counts.target_calls.sum(),
      run.steps,
      len(run.texts),
    )
    for run in runs
  ]
  return Batches(*np.array(columns, float).T)


def _predict(cost: Costs, base: Batches, ours: Batches) -> metrics.Estimate:
  """Predicts the speed-up of batches that wait for their last row."""

  def speed(base_tokens, base_places, tokens, places, c, v):
    plain = base_tokens / base_places
    return metrics.predicted_speedup(tokens / places / plain, c, v, cost.depth)

  sums = metrics.Sums(base.tokens, base.places, ours.tokens, ours.places)
  return metrics.combine(speed, sums, cost.draws, positive=True)


def _agree(cost: Costs, base: Batches, ours: Batches) -> metrics.Estimate:
  """Returns the measured speed-up over the predicted one; tokens cancel."""

  def over(base_seconds, base_places, seconds, places, c, v):
    step = base_seconds / base_places / (seconds / places)
    return step / metrics.predicted_speedup(1, c, v, cost.depth)

  sums = metrics.Sums(base.seconds, base.places, ours.seconds, ours.places)
  return metrics.combine(over, sums, cost.draws, positive=True)


def waiting(runs: list[Run], base: list[Run], cost: Costs) -> dict:
  """Returns what a batch does to its rows: how long each waits for the last.

  Args:
    runs: of the method, a batch each.
    base: plain decoding of the same.
    cost: of the method's step, in batches of this size.
  """
  ours, plain = batches_of(runs), batches_of(base)
  found = {
    'row_seconds_per_token': ours.latency,
    'baseline_row_seconds_per_token': plain.latency,
    'predicted_static_speedup': _predict(cost, plain, ours),
    'measured_over_predicted_static': _agree(cost, plain, ours),
  }
  return {
    'at_work': ours.at_work,
    'baseline_at_work': plain.at_work,
    **{name: one.value for name, one in found.items()},
    **{f'{name}_ci': one.interval for name, one in found.items()},
  }
