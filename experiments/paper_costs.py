"""Where does speculation pay on accelerators that nobody here has? Calculated.

  python -m experiments.paper_costs

Nothing is timed and no accelerator is needed; it takes seconds. A pass reads
the weights and the cache of every row, multiplies, and exchanges with the
devices that the model is split over. The longest of the three, at published
peaks, is a bound from below (Williams et al. 2009, the roofline): latencies,
what does not overlap and kernels below their peak come on top. From it follow v
and c at every batch and context, and with a rate of acceptance the speed-up, as
from measured ones.

The targets are Llama 3 8B and 70B, the drafts Llama 3.2 1B and a head of one
layer. Expect short contexts to pay up to some batch, where arithmetic becomes
the limit, and long ones at every batch that fits: there the cache, which all
tokens of a row share, outweighs the weights.
Peaks are those of `specjax.stats.roofline.CHIPS`.
"""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from specjax.bench import memory, results, study
from specjax.bench.compiled.estimate import SIZES
from specjax.bench.compiled.programs import deepened
from specjax.cli import command
from specjax.cli.fields import Between, Count, check_fields
from specjax.errors import need
from specjax.models import sharding, transformer
from specjax.models.config import TransformerConfig
from specjax.models.sharding import Placement
from specjax.reports import Draw, figure_style
from specjax.reports.conditions import values
from specjax.reports.markdown import Table, blocks, paragraph
from specjax.stats import theory
from specjax.stats.roofline import CHIPS
from specjax.stats.row import group, pick

HEAD = 'head'  # one layer of the target, as that of EAGLE-3
_HEAD_WORDS = 32_000  # tokens that a head has logits of
_SLOTS = 128  # of a cache whose bytes are counted
_DTYPE = 'bfloat16'  # of weights and caches, as peaks are


class Deployment(NamedTuple):
  """A target on so many devices, over which everything is split."""

  target: str
  accelerator: str
  devices: int = 1  # a divisor of the heads


MODELS: dict[str, TransformerConfig] = {
  '8B': SIZES['8b'],
  '70B': SIZES['70b'],
  '1B': dataclasses.replace(SIZES['1b'], tied_embeddings=True),
}
DEPLOYMENTS = (
  Deployment('8B', 'H100'),
  Deployment('8B', 'H200'),
  Deployment('8B', 'v5e', 4),
  Deployment('8B', 'v5p'),
  Deployment('8B', 'v6e', 4),
  Deployment('70B', 'H100', 8),
  Deployment('70B', 'H200', 8),
  Deployment('70B', 'v5p', 8),
  Deployment('70B', 'v6e', 8),
)
DRAFTS = '1B', HEAD


@dataclasses.dataclass
class PaperCosts:
  """Sizes of a calculation.

  Attributes:
    name: rows go to runs/<name>-<hash of the settings>, or to `results`.
    contexts: tokens in the cache of every row.
    batches: rows; those that do not fit are left out.
    gammas: draft lengths.
    rates: chances that a drafted token is accepted.
    results: folder for rows and summary.
    quick: two deployments, contexts and batches.
  """

  name: str = 'paper_costs'
  contexts: tuple[Count, ...] = (512, 4096, 32_768, 131_072)
  batches: tuple[Count, ...] = tuple(2**i for i in range(10))
  gammas: tuple[Count, ...] = (1, 2, 3, 4, 6, 8)
  rates: tuple[Annotated[float, Between(0, 1)], ...] = (0.6, 0.7, 0.8, 0.9)
  results: str = ''
  quick: bool = False

  def shrink(self) -> None:
    """Leaves the quick version."""
    self.contexts, self.batches = self.contexts[:2], self.batches[:2]

  def check(self) -> None:
    """Raises a UserError that names a field which is empty or out of range."""
    check_fields(self)
    for name in ('contexts', 'batches', 'gammas', 'rates'):
      need(getattr(self, name), f'{name} is empty: give at least one')


@functools.cache
def held(
  config: TransformerConfig, placement: Placement
) -> tuple[int, int, int]:
  """Bytes on each device: all weights, those a pass reads, a token's cache."""

  def sizes(config: TransformerConfig) -> np.ndarray:
    model = transformer.build(config)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    places = transformer.shardings(config, placement)
    parts = jax.tree.map(
      lambda x, place: jax.ShapeDtypeStruct(place.shard_shape(x.shape), _DTYPE),
      shapes,
      places,
    )
    read, _ = memory.bytes_per_token(model, parts, _SLOTS)
    cache = memory.of_cache(model, placement, 1, _SLOTS, 0, _DTYPE)
    whole = memory.of_parameters(config, placement, _DTYPE)
    return np.array([whole, read, cache // _SLOTS])

  whole, read, cache = map(int, deepened(config, sizes))
  return whole, read, cache


def exchange(
  config: TransformerConfig, placement: Placement, tokens: int
) -> tuple[int, int]:
  """Counts what a pass over so many tokens of all rows exchanges.

  The embedding, attention and the MLP end in a sum over the devices wherever
  the mesh divides their sizes; the logits are put together.

  Returns:
    Numbers of the sums, and numbers that are put together, on each device.
  """
  if placement.mesh.shape['model'] == 1:
    return 0, 0
  gathered = int(not placement.keeps_whole('vocab', config.vocab_size))
  each = (('kv_heads', config.num_kv_heads), ('mlp', config.mlp_width))
  layer = sum(not placement.keeps_whole(*one) for one in each)
  sums = gathered + config.num_layers * layer
  return sums * tokens * config.width, gathered * tokens * config.vocab_size


class Calculation:
  """One deployment with one draft at one context."""

  def __init__(self, one: Deployment, draft: str, context: int):
    self.one, self.context = one, context
    self.device = CHIPS[one.accelerator.lower()]
    self.place = Placement(sharding.plan_mesh(1, one.devices))
    self.target = MODELS[one.target]
    # The product that joins the features of a head is left out.
    self.draft = MODELS.get(draft) or dataclasses.replace(
      self.target, num_layers=1, vocab_size=_HEAD_WORDS
    )

  def limits(
    self, config: TransformerConfig, rows: int, tokens: int
  ) -> dict[str, float]:
    """Returns the seconds that each limit asks of a pass.

    A sum over n devices in a ring sends its bytes 2 (n - 1) / n times, putting
    together (n - 1) / n times.

    Args:
      config: of the model.
      rows: of the batch.
      tokens: of each row that are scored together.
    """
    _, weights, cache = held(config, self.place)
    whole = self.place.keeps_whole('kv_heads', config.num_kv_heads)
    heads = config.num_layers * config.num_heads * config.head_dim
    heads //= 1 if whole else self.one.devices
    size = jnp.dtype(_DTYPE).itemsize
    # Every weight once, and for each key and value as many as a head has.
    products = weights // size + 2 * self.context * heads
    summed, gathered = exchange(config, self.place, rows * tokens)
    ring = (self.one.devices - 1) / self.one.devices
    sent = ring * size * (2 * summed + gathered)
    read = weights + rows * self.context * cache
    return {
      'memory': read / self.device.bandwidth,
      'arithmetic': 2 * products * rows * tokens / self.device.operations,
      'exchange': sent / self.device.exchange,
    }

  def seconds(self, config, rows: int, tokens: int) -> float:
    return max(self.limits(config, rows, tokens).values())

  def v(self, rows: int, gamma: int) -> float:
    scored = self.seconds(self.target, rows, gamma + 1)
    return scored / self.seconds(self.target, rows, 1)

  def c(self, rows: int) -> float:
    plain = self.seconds(self.target, rows, 1)
    return self.seconds(self.draft, rows, 1) / plain

  def best(self, rows: int, rate: float, gammas) -> tuple[float, int]:
    """The largest speed-up at a rate of acceptance, and its draft length."""
    c = self.c(rows)
    return max(
      (float(theory.speedup(rate, gamma, c, self.v(rows, gamma))), -gamma)
      for gamma in gammas
    )

  def fits(self) -> int:
    """Rows whose caches fit beside the weights; 0 where these do not."""
    both = (held(config, self.place) for config in (self.target, self.draft))
    whole, _, caches = map(sum, zip(*both, strict=True))
    left = self.device.memory - whole
    return max(0, int(left // (self.context * caches)))

  def pays_up_to(self, rate: float, gammas) -> int | None:
    """The batch up to which every one pays; None where all that fit do."""
    return last(lambda rows: self.best(rows, rate, gammas)[0] > 1, self.fits())


def last(holds: Callable[[int], bool], most: int) -> int | None:
  """Up to which number from 1 on something holds; None: up to the most.

  What holds at two numbers, one twice the other, holds in between.
  """
  high = 1
  while high < most and holds(high):
    high *= 2
  tried = range(high // 2 + 1, min(high, most) + 1)
  fails = bisect.bisect_left(tried, True, key=lambda n: not holds(n))
  found = high // 2 + fails
  return None if found == most > 0 else found


def row(x: PaperCosts, one: Deployment, draft: str, context: int) -> dict:
  """All batches of a deployment with a draft at a context."""
  made = Calculation(one, draft, context)
  fits = made.fits()
  batches = [rows for rows in x.batches if rows <= fits]
  limits = [made.limits(made.target, rows, 1) for rows in batches]
  best = {
    f'{rate:g}': [made.best(rows, rate, x.gammas) for rows in batches]
    for rate in x.rates
  }
  return results.plain(
    {
      'program': 'paper_costs',
      'config': x.name,
      'calculated': True,
      'target': one.target,
      'draft': draft,
      'accelerator': one.accelerator,
      'device': made.device._asdict(),
      'devices': one.devices,
      'dtype': _DTYPE,
      'context': context,
      'fits': fits,
      'batches': batches,
      'plain_seconds': [max(each.values()) for each in limits],
      'plain_limit': [max(each, key=each.__getitem__) for each in limits],
      'c': [made.c(rows) for rows in batches],
      'v': {
        str(gamma): [made.v(rows, gamma) for rows in batches]
        for gamma in x.gammas
      },
      'best_gamma': {k: [-g for _, g in pairs] for k, pairs in best.items()},
      'speedup': {k: [s for s, _ in pairs] for k, pairs in best.items()},
      'pays_up_to': {
        f'{rate:g}': made.pays_up_to(rate, x.gammas) for rate in x.rates
      },
    }
  )


def run(x: PaperCosts) -> None:
  deployments = DEPLOYMENTS[:2] if x.quick else DEPLOYMENTS
  x.check()
  folder = results.folder_of(x)
  folder.clear()  # It takes seconds, and is the same every time.
  for place in itertools.product(deployments, DRAFTS, x.contexts):
    folder.add(row(x, *place))
  study.publish(folder)


_LEAD = (
  '*Calculated*, not measured: a pass takes the longest of reading its bytes, '
  'its operations and what devices exchange, at published peaks and without '
  'latencies. Real passes take longer, most of all small ones.'
)
_NOTE = """
*calculated*. **fits** is the batch whose caches fit beside the weights, **v**
and **c** are of that batch, **limit** is that of a plain step. A cell of
acceptance is the batch up to which every one pays with the best draft length,
*all* where all that fit do, and in brackets the speed-up at batch 1 and at the
largest batch of the table.
""".strip()
_SHOWN = '0.8'  # acceptance that the figure is of, if it is there


fields = study.alike(
  text='target draft accelerator dtype',
  count='devices context fits',
  flag='calculated',
  counts='batches',
  numbers='c plain_seconds',
  texts='plain_limit',
  table='v best_gamma speedup pays_up_to',
)


def device(row: dict) -> str:
  many = f'{row["devices"]} x ' if row['devices'] > 1 else ''
  return f'{many}{row["accelerator"]}'


def headline(rows: list[dict]) -> str:
  """Says that nothing was measured, and in which type it is calculated."""
  where = f'In {values(rows, "dtype")}.'
  return blocks(paragraph(_LEAD), paragraph(where))


def _cell(row: dict, rate: str) -> str:
  speeds, up_to = row['speedup'][rate], row['pays_up_to'][rate]
  shown = f'all ({row["fits"]})' if up_to is None else up_to
  return f'{shown} [{speeds[0]:.2f}, {speeds[-1]:.2f}]'


def _ends(values: list[float], form: str, scale: float = 1.0) -> str:
  """The first and the last: of batch 1, and of the largest."""
  return f'{scale * values[0]:{form}}, {scale * values[-1]:{form}}'


def _line(row: dict, gamma: str) -> list[str]:
  size = device(row), f'{row["context"]:,}', str(row['fits'])
  if not row['batches']:
    return [*size, *'-' * 5, *('-' for _ in row['speedup'])]
  return [
    *size,
    str(row['batches'][-1]),
    _ends(row['plain_seconds'], '.2f', 1e3),
    f'{row["plain_limit"][0]}, {row["plain_limit"][-1]}',
    _ends(row['v'][gamma], '.2f'),
    _ends(row['c'], '.3f'),
    *(_cell(row, rate) for rate in row['speedup']),
  ]


def tables(rows: list[dict]) -> list[Table]:
  """A table for each target and draft."""
  made = []
  for (target, draft), here in group(rows, 'target', 'draft').items():
    gammas = list(here[0]['v'])
    gamma = '4' if '4' in gammas else gammas[-1]
    head = ['on', 'context', 'fits', 'to batch', 'plain ms', 'limit']
    head += [f'v({int(gamma) + 1})', 'c']
    head += [f'pays, acceptance {rate}' for rate in here[0]['speedup']]
    title = f'{target} with draft {draft} (calculated)'
    lines = [_line(row, gamma) for row in here]
    made.append(Table(title, '' if made else _NOTE, head, lines))
  return made


def summary(rows: list[dict]) -> str:
  """The headline, and all tables."""
  return blocks(headline(rows), *(one.markdown() for one in tables(rows)))


def speedup_by_batch(rows: list[dict]) -> Figure:
  """Calculated speed-up by batch, a line for each context."""
  rates = list(rows[0]['speedup'])
  rate = _SHOWN if _SHOWN in rates else rates[-1]
  drafts = list(dict.fromkeys(r['draft'] for r in rows))
  names = ('target', 'accelerator', 'devices')
  places = list(group(pick(rows, draft=drafts[0]), *names).items())
  across = min(5, len(places))
  down = -(-len(places) // across)
  figure = figure_style.blank(0.6 + 1.9 * down)
  grid = figure.subplots(
    down, across, sharex=True, sharey=True, squeeze=False
  ).ravel()
  for axes in grid[len(places) :]:
    axes.set_axis_off()
  contexts = sorted({r['context'] for r in rows})
  ticks = sorted({b for r in rows for b in r['batches']})[::3]
  for axes, (_, here) in zip(grid, places, strict=False):
    axes.axhline(1, color='black', linewidth=0.8)
    for row in here:
      axes.plot(
        row['batches'],
        row['speedup'][rate],
        color=figure_style.colour(contexts.index(row['context'])),
        label=f'{row["context"]:,} tokens',
        linewidth=1.2,
      )
    axes.set_title(f'{here[0]["target"]}, {device(here[0])}', size=8)
    axes.set_xscale('log', base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3, linewidth=0.5)
  grid[0].set_ylim(bottom=0)
  figure.supxlabel(
    f'batch; lines end where caches no longer fit. Calculated: draft '
    f'{drafts[0]}, acceptance {rate}, best draft length',
    size=8,
  )
  figure.supylabel('times plain decoding, calculated', size=8)
  handles, labels = grid[0].get_legend_handles_labels()
  figure.legend(
    handles, labels, loc='outside upper left', ncols=len(labels), fontsize=8,
    frameon=False,
  )  # fmt: skip
  return figure


def figures(rows: list[dict]) -> tuple[Draw, ...]:
  return (speedup_by_batch,) if any(r['batches'] for r in rows) else ()


if __name__ == '__main__':
  command.study(run, PaperCosts)
