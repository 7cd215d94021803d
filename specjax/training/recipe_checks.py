"""The values of a recipe: checked before anything is read or trained.

A training takes minutes to hours, so what would go wrong at its last stage is
refused at the first.
"""

import itertools
import math

from specjax import checkpoints
from specjax.bench.config import Size
from specjax.bench.loading.checks import (
  check_dtype,
  need,
  need_least,
  need_seed,
  need_temperatures,
)
from specjax.cli.names import resolve_function
from specjax.errors import blame
from specjax.prompts import conversations, files
from specjax.training.optimize import CURVES
from specjax.training.recipes import (
  Distillation,
  Drafts,
  Examples,
  Heads,
  HeldOut,
  Mixture,
  Online,
  Optimization,
  Recipe,
  Texts,
)


def optimization(field: str, o: Optimization, scored: bool = False) -> None:
  """Refuses an optimization that cannot be run.

  Args:
    field: that has it.
    o: it.
    scored: whether drafters are tried on held-out prompts at its checkpoints.
  """
  numbers = 'batch', 'length', 'checkpoint_every', 'accumulate'
  need_least(o, 1, *numbers, where=f'{field}.')
  need_least(o, 0, 'patience', where=f'{field}.')
  resolve_function(f'{field}.curve', o.curve, CURVES)
  o.curve = CURVES.full(o.curve).removeprefix(CURVES.template.format(''))
  need(
    scored or not o.patience,
    f'{field}.patience is {o.patience}, but nothing is tried on held-out '
    'prompts there: leave it at 0',
  )
  need(
    o.dtype in ('float32', 'bfloat16'),
    f'{field}.dtype must be float32 or bfloat16, got {o.dtype!r}',
  )
  need(o.schedule, f'{field}.schedule is empty: give a step and its rate')
  steps = [0, *(step for step, _ in o.schedule)]
  need(
    all(a < b for a, b in itertools.pairwise(steps)),
    f'{field}.schedule must have steps above 0 that rise, got {o.schedule}',
  )
  need(
    all(math.isfinite(rate) and rate >= 0 for _, rate in o.schedule),
    f'{field}.schedule must have finite rates of at least 0, got {o.schedule}',
  )
  need(
    math.isfinite(o.weight_decay) and o.weight_decay >= 0,
    f'{field}.weight_decay must be finite and at least 0, got {o.weight_decay}',
  )
  need(o.clip > 0, f'{field}.clip must be above 0, got {o.clip}')


def texts(field: str, x: Texts) -> None:
  """Refuses texts that cannot be written."""
  names = 'count', 'prompt_length', 'batch', 'length'
  need_least(x, 1, *names, where=f'{field}.')
  need(
    0 <= x.greedy_share <= 1,
    f'{field}.greedy_share must be in [0, 1], got {x.greedy_share}',
  )
  need(
    x.prompt_length <= x.length,
    f'{field}.prompt_length is {x.prompt_length}, but {field}.length is '
    f'{x.length}: nothing is left to be written, lower one or raise the other',
  )


def fill(field: str, x: Texts, o: Optimization) -> None:
  """Refuses texts that do not fill the windows of a batch."""
  need(
    x.length >= o.length and x.count >= o.batch,
    f'{field}: {x.count} of {x.length} tokens do not fill a batch of '
    f'{o.batch} windows of {o.length}: write more, or longer ones',
  )


def held_out(field: str, x: HeldOut) -> None:
  """Refuses prompts that no drafter can be tried on."""
  names = 'prompts', 'prompt_length', 'new_tokens', 'depth'
  need_least(x, 1, *names, where=f'{field}.')
  need(
    x.depth < x.new_tokens,
    f'{field}.depth is {x.depth}, but must be below {field}.new_tokens, which '
    f'is {x.new_tokens}: draft less, or decode more',
  )
  need_temperatures(f'{field}.temperatures', x.temperatures)
  need_seed(x.seed, f'{field}.seed')


def mixture(x: Mixture) -> None:
  """Refuses shares that are none."""
  for name, share in vars(x).items():
    need(
      math.isfinite(share) and share >= 0,
      f'mixture.{name} must be finite and at least 0, got {share}',
    )
  need(sum(vars(x).values()) > 0, 'mixture: all shares are 0; raise one')


def no_packages(x: Mixture, reason: str) -> None:
  """Refuses shares of installed packages, of which nothing is read.

  Args:
    x: the shares.
    reason: why there are none, and what helps.
  """
  for name in ('packages', 'package_documentation'):
    share = getattr(x, name)
    need(not share, f'mixture.{name} is {share}, but {reason}')


def size(field: str, x: Size) -> None:
  """Refuses a model that cannot be built."""
  need_least(x, 1, *vars(x), where=f'{field}.')
  need(
    x.num_heads % x.num_kv_heads == 0,
    f'{field}.num_kv_heads is {x.num_kv_heads}, which does not divide the '
    f'{x.num_heads} of {field}.num_heads: choose a divisor',
  )
  need(
    x.head_dim % 2 == 0,
    f'{field}.head_dim must be even for rotary positions, got {x.head_dim}',
  )


def width(field: str, value: int) -> None:
  """Refuses a draft that has no whole heads; see `train_pair.draft_size`."""
  heads = value // 32
  need(
    value > 0 and value % 32 == 0 and heads % max(1, value // 64) == 0,
    f'{field} must be 32, 96 or a multiple of 64, got {value}',
  )


def positions(available: int, whose: str, lengths: dict[str, int]) -> None:
  """Refuses texts that are longer than a model reads.

  Args:
    available: positions of the model.
    whose: they are, and where to get more.
    lengths: that are asked for, by field.
  """
  for field, longest in lengths.items():
    need(
      longest <= available,
      f'{field} asks for {longest} positions, but {whose} {available}: choose '
      'less',
    )


def has_examples(x: Distillation | Heads) -> bool:
  """Whether it learns from examples of one's own."""
  return isinstance(x, Heads) and bool(x.examples.prompts.path)


def examples(x: Examples) -> None:
  """Refuses examples that cannot be learned from, before they are read."""
  if not x.prompts.path:
    for name, default in (('answer', ''), ('evaluation', '')):
      need(
        getattr(x, name) == default,
        f'examples.{name} is given, but examples.prompts.path names no file: '
        'give one, or leave it out',
      )
    return
  files.check(x.prompts.path, 'examples.prompts.path')
  if x.evaluation:
    files.check(x.evaluation, 'examples.evaluation')
  need(
    0 < x.held_out < 1,
    f'examples.held_out must be in (0, 1), got {x.held_out}: some are learned, '
    'and drafters are tried on others',
  )
  need(
    not x.prompts.dataset,
    'examples.prompts.dataset is not read: name a file with '
    'examples.prompts.path',
  )
  with blame('examples.'):
    conversations.check(x.prompts)


def lengths(x: Distillation | Heads) -> dict[str, int]:
  """Positions that a recipe asks of its models, by field."""
  positions = {}
  if not has_examples(x):
    positions['texts.length'] = x.texts.length + 1
  held = {'held_out': x.held_out}
  if isinstance(x, Heads):
    positions['optimization.length'] = x.optimization.length
  else:
    positions['own_texts.length'] = x.own_texts.length + 1
    positions['undistilled.length'] = x.undistilled.length
    positions['distillation.length'] = x.distillation.length
    held['final'] = x.final
  for field, one in held.items():
    both = f'{field}.prompt_length + {field}.new_tokens'
    positions[both] = one.prompt_length + one.new_tokens
  return positions


def common(x: Recipe | Distillation | Heads | Online) -> None:
  """Refuses what no recipe may have."""
  need(x.folder, 'folder is empty: name where the training is kept')
  check_dtype('dtype', x.dtype)
  need_seed(x.seed)


def _of_corpus(x: Recipe | Distillation | Heads) -> None:
  common(x)
  need_least(x, 1, 'every')
  mixture(x.mixture)


def known_target(x: Distillation | Heads | Online) -> None:
  """Refuses a target that is not there."""
  with blame('target: '):
    checkpoints.locate(x.target)


def trained(x: Distillation | Heads) -> None:
  """Refuses what drafters of a given target share."""
  _of_corpus(x)
  known_target(x)
  if not has_examples(x):
    need(x.data, 'data is empty: name the folder of the corpus and the texts')
    texts('texts', x.texts)
  held_out('held_out', x.held_out)


def pair(x: Recipe) -> None:
  """Refuses a recipe of a target and its drafts.

  Raises:
    UserError: names the field and the remedy.
  """
  _of_corpus(x)
  need_least(x, 1, 'tokenizer_sample', 'max_positions')
  if not x.packages:
    no_packages(x.mixture, 'packages is False: set it, or leave the share at 0')
  need(
    x.vocab_size >= 257,
    f'vocab_size must be at least 257, one for each byte and the end of text, '
    f'got {x.vocab_size}',
  )
  size('target', x.target)
  optimization('target_training', x.target_training)
  # Every fourth window of the target is twice as long.
  asked = {'target_training.length': 2 * x.target_training.length}
  if x.drafts is not None:
    asked |= drafts(x.drafts)
  positions(x.max_positions, 'max_positions is', asked)


def drafts(d: Drafts) -> dict[str, int]:
  """Refuses drafts that cannot be trained; returns the positions they ask."""
  optimization('drafts.on_corpus', d.on_corpus)
  optimization('drafts.on_samples', d.on_samples)
  texts('drafts.texts', d.texts)
  fill('drafts.texts', d.texts, d.on_samples)
  need(d.widths, 'drafts.widths is empty: give at least one, such as 128')
  need(
    len({*d.widths}) == len(d.widths),
    f'drafts.widths: {d.widths} has one twice; leave it out',
  )
  for value in d.widths:
    width('drafts.widths', value)
  need(d.layers >= 1, f'drafts.layers must be at least 1, got {d.layers}')
  return {
    'drafts.on_corpus.length': d.on_corpus.length,
    'drafts.texts.length': d.texts.length + 1,
  }
