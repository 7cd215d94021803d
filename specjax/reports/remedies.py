"""What would make speculation faster, from measured numbers alone.

One call of the target yields tau tokens and takes v + gamma c plain steps.
Four things can be made better, and each is asked what the speed-up would be if
half of its trouble were gone, at the draft length that is best then. The fifth
is the draft length itself, which costs nothing to change.
"""

import dataclasses
import math

from specjax.stats import theory


@dataclasses.dataclass(frozen=True)
class Facts:
  """What was measured of a draft; dictionaries are by draft length.

  Attributes:
    gamma: the draft length that was asked for.
    alpha: mean acceptance; None where nothing was drafted.
    tau: tokens per target call.
    c: drafting a token, in plain steps.
    v: scoring, judging and committing gamma + 1 tokens, in plain steps.
    speedup: measured, with its 95% interval if it has one.
    overhead: what a speculative step spends on neither drafting nor scoring,
      in plain steps.
    plain_overhead: the same of a plain step.
  """

  gamma: int
  alpha: float | None
  tau: dict[int, float]
  c: dict[int, float]
  v: dict[int, float]
  speedup: dict[int, tuple[float, list[float] | None]]
  overhead: float
  plain_overhead: float


@dataclasses.dataclass(frozen=True)
class Change:
  """Factors of what is wrong: 1 leaves it as it is."""

  drafting: float = 1.0
  disagreement: float = 1.0
  scoring: float = 1.0
  overhead: float = 1.0


@dataclasses.dataclass(frozen=True)
class Advice:
  """The remedy that helps most, and a sentence on it."""

  remedy: str  # draft, agreement, scoring, overhead or gamma
  gain: float  # factor on the predicted speed-up
  sentence: str


def predict(facts: Facts, gamma: int, change: Change = Change()) -> float:
  """The speed-up that the costs promise after a change."""
  plain, step = facts.plain_overhead, facts.overhead
  scoring = facts.v[gamma] - step  # Of gamma + 1 tokens, 1 - plain of one.
  scoring = 1 - plain + change.scoring * (scoring - (1 - plain))
  total = scoring + change.overhead * step
  total += change.drafting * gamma * facts.c[gamma]
  tau = facts.tau[gamma]
  if change.disagreement != 1 and facts.alpha is not None:
    alpha = 1 - change.disagreement * (1 - facts.alpha)
    tau *= theory.tokens_per_call(alpha, gamma)
    tau /= theory.tokens_per_call(facts.alpha, gamma)
  return tau * (1 - plain + change.overhead * plain) / total


def best_gamma(facts: Facts, change: Change = Change()) -> int:
  """The draft length of the largest predicted speed-up, of those measured."""
  return max(facts.tau, key=lambda gamma: predict(facts, gamma, change))


_REMEDIES = {
  'draft': Change(drafting=0.5),
  'agreement': Change(disagreement=0.5),
  'scoring': Change(scoring=0.5),
  'overhead': Change(overhead=0.5),
}


def _number(value: float) -> str:
  return f'{value:.2f}'


def _reason(remedy: str, facts: Facts, gamma: int) -> str:
  """What is wrong, and what is to be halved."""
  if remedy == 'draft':
    share = gamma * facts.c[gamma] / (facts.v[gamma] + gamma * facts.c[gamma])
    return (
      f'drafting takes {share:.0%} of a step (c {facts.c[gamma]:.3f}); a draft '
      'at half the cost'
    )
  if remedy == 'agreement':
    even = theory.break_even_alpha(gamma, facts.c[gamma], facts.v[gamma])
    bound = (
      'no alpha breaks even' if math.isnan(even) else f'{even:.2f} breaks even'
    )
    return (
      f'the draft agrees too rarely (alpha {_number(facts.alpha or 0)}, '
      f'{bound}); half the disagreement, by distilling the draft or enlarging '
      'it,'
    )
  if remedy == 'scoring':
    return (
      f'scoring {gamma + 1} tokens costs too much (v {facts.v[gamma]:.2f}); '
      'half the extra cost, with fewer rows at once or on hardware with '
      'arithmetic to spare,'
    )
  return (
    f'the target is too cheap: {facts.plain_overhead:.0%} of its plain step '
    'is spent outside of it; half of this overhead, or a larger target,'
  )


def decide(facts: Facts) -> Advice:
  """The remedy that would help most, in one sentence."""
  here = best_gamma(facts)
  now = predict(facts, here)
  asked = predict(facts, facts.gamma)
  options = {'gamma': (now / asked, here, now)}
  for name, change in _REMEDIES.items():
    gamma = best_gamma(facts, change)
    after = predict(facts, gamma, change)
    options[name] = after / now, gamma, after
  remedy = max(options, key=lambda name: options[name][0])
  gain, gamma, after = options[remedy]
  # A change of gamma is judged from the one asked for, others from the best.
  at = facts.gamma if remedy == 'gamma' else here
  value, ends = facts.speedup[at]
  state = f'{_number(value)} times as fast as plain decoding'
  if ends and ends[0] <= 1 <= ends[1]:
    state = f'about as fast as plain decoding ({_number(value)} times)'
  if remedy == 'gamma':
    kind = 'long' if facts.gamma > here else 'short'
    why = f'gamma {facts.gamma} is too {kind}; gamma {here}'
  else:
    why = _reason(remedy, facts, here)
  return Advice(
    remedy,
    gain,
    f'At gamma {at} speculation is {state}, and what would help most: {why} '
    f'would give about {_number(after)}'
    + (f' at gamma {gamma}.' if remedy != 'gamma' else '.'),
  )
