"""The row of a cell: what its runs say, in the fields of a results folder."""

from typing import Any, NamedTuple

import numpy as np

from specjax import prompts
from specjax.bench.costs import Costs
from specjax.bench.measure import Log, Run
from specjax.sampling import Automaton
from specjax.stats import metrics
from specjax.stats.row import TIMES, names
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
  logs = [r.log for r in runs if r.log is not None]
  longest = max(log.accepted.shape[1] for log in logs)
  padded = (log.padded(longest - log.accepted.shape[1]) for log in logs)
  log = Log(*map(np.concatenate, zip(*padded, strict=True)))
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
    'alpha_mle': accepted / tried if tried else None,
    'acceptance': accepted / drafted if drafted else None,
    'acceptance_by_position': unconditional,
    'acceptance_by_position_conditional': conditional,
    'histogram': counts.histogram.sum(0).tolist(),
    **metrics.fields(
      alpha=alpha.estimate,
      alpha_of_rule=under_rule.estimate,
      tau=tau,
      tau_per_request=per_request,
      tau_per_step=per_step,
      tau_without_bonus=without_bonus,
    ),
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
      **metrics.fields(tau=tau, alpha=mean),
    }
    if base:
      ours, plain = batches_of(here), batches_of(split(base)[turn])
      speedup = metrics.speedup(
        plain.seconds, plain.tokens, ours.seconds, ours.tokens
      )
      entry |= metrics.fields(speedup=speedup)
    entries.append(entry)
  return {
    'texts': sum(entry['texts'] for entry in entries),
    'by_turn': entries,
    'shortened': sum(run.shortened for run in runs),
  }


def speed(runs: list[Run], base: list[Run], cost: Costs) -> dict:
  """Returns the fields that depend on the machine, with intervals over batches.

  Args:
    runs: of the method, a batch each.
    base: plain decoding of the same.
    cost: of the method's step, in batches of this size.
  """
  ours, plain = batches_of(runs), batches_of(base)
  times = plain.seconds, plain.tokens, ours.seconds, ours.tokens
  found = {
    'speedup': metrics.speedup(*times),
    'speedup_of_rates': metrics.speedup_of_rates(*times),
    'predicted_speedup': cost.predict(ours.tokens, ours.calls),
    'measured_over_predicted': cost.agreement(
      plain.seconds, plain.tokens, ours.seconds, ours.calls
    ),
    'row_seconds_per_token': ours.latency,
    'baseline_row_seconds_per_token': plain.latency,
    'predicted_static_speedup': cost.predict(
      ours.tokens, ours.places, plain.tokens, plain.places
    ),
    'measured_over_predicted_static': cost.agreement(
      plain.seconds, plain.places, ours.seconds, ours.places
    ),
  }
  return {
    'seconds': ours.seconds.sum(),
    'prefill_seconds': sum(r.prefill_seconds for r in runs),
    'tokens_per_second': ours.tokens.sum() / ours.seconds.sum(),
    'baseline_tokens_per_second': plain.tokens.sum() / plain.seconds.sum(),
    'c': cost.c,
    'v': cost.v,
    'seconds_per_step': cost.seconds(),
    'at_work': ours.at_work,
    'baseline_at_work': plain.at_work,
    **metrics.fields(**found),
    'unit_seconds': [float(r.seconds) for r in runs],
    'unit_baseline_seconds': [float(r.seconds) for r in base],
    'unit_baseline_tokens': [int(n) for r in base for n in r.counts.tokens],
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
