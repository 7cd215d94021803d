"""The time of a step on a device, from what its program consists of.

An estimate, not a measurement. A step of a GPU takes the time to read its
weights and caches, and a price for each thing that its host starts. A step of a
TPU takes the cycles that its compiler estimates, and the time to fetch what
these do not contain.
"""

from collections.abc import Mapping
from typing import NamedTuple

from specjax.stats import metrics


class Chip(NamedTuple):
  """A chip as its maker describes it.

  Attributes:
    bandwidth: of its memory, bytes a second.
    memory: bytes.
    operations: a second, of products in bfloat16 without sparsity.
    exchange: bytes a second to other chips, in one direction. Data sheets print
      the sum of both directions.
    clock: cycles a second in which its compiler counts; None: it counts none.
  """

  bandwidth: float
  memory: float
  operations: float
  exchange: float
  clock: float | None = None


# GPUs: NVIDIA's data sheets (SXM, NVLink). The bandwidth of the H100 is the one
# in XLA's description of it. TPUs: docs.cloud.google.com/tpu/docs/v5e, v5p and
# v6e (ICI).
CHIPS: Mapping[str, Chip] = {
  'h100': Chip(3352e9, 80e9, 989e12, 450e9),
  'h200': Chip(4800e9, 141e9, 989e12, 450e9),
  'v5e': Chip(819e9, 16e9, 197e12, 200e9, 1.5e9),
  'v5p': Chip(2765e9, 95e9, 459e12, 600e9, 1.75e9),
  'v6e': Chip(1638e9, 32e9, 918e12, 400e9, 1.75e9),
}

# Seconds that each of these takes on a GPU: assumed, measured on none.
PRICES: Mapping[str, float] = {
  'nodes': 0.75e-6,
  'launches': 2.5e-6,
  'graphs': 4e-6,
  'waits': 10e-6,
}
DRAFTING = 'propose', 'tell'  # phases of a step

Place = tuple[str, str]  # phase of a step, module of a model


class Pass(NamedTuple):
  """One pass of a model on each device.

  Attributes:
    bytes: of weights and caches that it reads.
    weights: numbers that each token is multiplied with.
    tokens: fed at once.
  """

  bytes: float
  weights: float
  tokens: float

  def seconds(self, chip: Chip) -> float:
    """Returns the least time that the pass takes."""
    computes = 2 * self.weights * self.tokens / chip.operations
    return max(self.bytes / chip.bandwidth, computes)


class Step(NamedTuple):
  """Seconds of a step."""

  draft: float
  rest: float

  @property
  def seconds(self) -> float:
    return self.draft + self.rest


def excess(chip: Chip, counts: Mapping[tuple, float]) -> dict[Place, float]:
  """Returns the seconds of a step beyond reading its weights, by place.

  Args:
    chip: the device.
    counts: of a step, by (what, phase, module).
  """
  each = dict(PRICES)
  # What is laid out anew is read and written.
  each |= dict.fromkeys(('weights', 'caches'), 2 / chip.bandwidth)
  if chip.clock is not None:
    each = {'cycles': 1 / chip.clock, 'prefetched': 1 / chip.bandwidth}
    each['read'] = -1 / chip.bandwidth
  found: dict[Place, float] = {}
  for (what, phase, module), number in counts.items():
    place = phase, module
    found[place] = found.get(place, 0.0) + each.get(what, 0.0) * number
  return found


def step_of(chip: Chip, counts: Mapping[tuple, float], least: Step) -> Step:
  """Estimates the time of a step.

  Args:
    chip: the device.
    counts: of a step, by (what, phase, module).
    least: the least time that its passes take.
  """
  kept = counts
  if chip.clock is not None:
    # Cycles contain the reading of weights.
    kept = {k: n for k, n in counts.items() if k[0] != 'read'}
    least = Step(0.0, 0.0)
  spent = excess(chip, kept)
  draft = sum(s for (phase, _), s in spent.items() if phase in DRAFTING)
  return Step(least.draft + draft, least.rest + sum(spent.values()) - draft)


def predict(plain: Step, step: Step, passes: int, tau: float) -> dict:
  """Returns v, c and the speed-up over plain decoding.

  Args:
    plain: a step of plain decoding.
    step: a step of the method.
    passes: of the draft in it.
    tau: tokens per target call.
  """
  v, c = step.rest / plain.seconds, step.draft / plain.seconds / passes
  speedup = metrics.predicted_speedup(tau, c, v, passes)
  return {'v': v, 'c': c, 'speedup': speedup}
