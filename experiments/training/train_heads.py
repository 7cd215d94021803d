"""Trains a drafter that reads the features of a frozen target.

The target reads every batch anew: its features on a disk would be a thousand
times as large as the text. A method brings its own `drafting.heads.Trainable`;
nothing here knows of any.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from experiments.errors import UserError, need
from experiments.recipes import Heads, Texts
from experiments.setup.names import Names, resolve, resolve_function
from experiments.training import folders, held_out, recipe_checks
from experiments.training.generated import (
  Material,
  draw_texts,
  draw_windows,
  write_target_texts,
)
from experiments.training.held_out import Trial
from experiments.training.optimize import train
from experiments.training.train_pair import wide
from specjax import checkpoints
from specjax.drafting import heads
from specjax.drafting.heads import Seen, Trainable
from specjax.models import transformer
from specjax.models.transformer import Model
from specjax.types import Drafter, Params

_TRAINABLE = Names('specjax.drafters.{}.trainable', 'medusa')


def check(x: Heads) -> None:
  """Checks what needs no weights.

  Raises:
    UserError: names the field and the remedy.
  """
  o = x.optimization
  resolve_function('trainable', x.trainable, _TRAINABLE)
  x.trainable = _TRAINABLE.full(x.trainable)  # As the folder has it.
  recipe_checks.trained(x)
  recipe_checks.optimization('optimization', o)
  need(0 <= x.share <= 1, f'share must be in [0, 1], got {x.share}')
  if x.share:
    recipe_checks.fill('texts', x.texts, o)


def shrink(x: Heads) -> None:
  """A toy version of a recipe that shows that every stage runs."""
  x.folder += '-quick'
  x.data = x.folder
  x.every = 40
  x.texts = Texts(count=8, batch=8, length=32)
  x.optimization.shrink(8, 32)
  x.held_out.shrink()


def make(x: Heads, target: Model) -> Trainable:
  """The head of a recipe.

  Raises:
    UserError: its function does not take these options, or refuses them.
  """
  try:
    return resolve('trainable', x.trainable)(target, **x.options)
  except (TypeError, ValueError) as error:
    raise UserError(
      f'options: {x.trainable} does not take {dict(x.options)}: {error}'
    ) from error


def see(target: Model, weights: Any, tokens: jax.Array, taps) -> Seen:
  """A target on whole windows [B, T]."""
  mask, positions = transformer.causal(*tokens.shape)
  out = target.forward(
    weights, tokens, positions, None, None, mask, taps=tuple(taps)
  )
  return Seen(tokens, out.taps, wide(target.head(weights, out.hidden)))


def loss_of(head: Trainable, target: Model, seed: int):
  """(drafter's parameters, the target's, a batch) -> the head's losses.

  Each step has a key of its own, in whichever process it is made.
  """
  root = jax.random.key(seed)

  def loss(params, frozen, batch):
    seen = see(target, frozen, batch['tokens'], head.taps)
    key = jax.random.fold_in(root, batch['step'])
    return head.loss(Params(frozen, params), seen, key)

  return loss


def batches(m: Material) -> Callable[[int, Any], dict[str, Any]]:
  """(step, parameters) -> windows of both kinds of text, and the step."""
  x, o = m.recipe, m.recipe.optimization
  written = round(x.share * o.batch)
  texts = write_target_texts(m) if written else None

  def batch(step, params):
    del params  # Unused.
    parts = []
    if texts is not None:
      parts.append(draw_texts(texts, written, o.length, x.seed + 2, step))
    if written < o.batch:
      left = o.batch - written
      parts.append(draw_windows(m, left, o.length, x.seed + 3, step))
    return {'tokens': np.concatenate(parts), 'step': np.int32(step)}

  return batch


def measure(
  head: Trainable, trial: Trial, drafter: Drafter, params: Any
) -> dict[str, Any]:
  """What a head measures of itself, in the target's text of held-out prompts.

  Only places behind the prompts count: what a head is asked while drafting.

  Returns:
    Its sums over all texts, and under `domains` those of each domain.
  """
  if head.measure is None:
    return {}
  begin = trial.x.prompt_length

  @jax.jit
  def sums(weights, tokens):
    seen = see(trial.target, weights.target, tokens, head.taps)
    return head.measure(weights, seen, begin)

  by_domain = {}
  for domain, texts in trial.write(drafter, params).items():
    made = sums(Params(trial.weights, params), texts)
    by_domain[domain] = jax.tree.map(np.asarray, jax.device_get(made))
  whole = jax.tree.map(lambda *parts: sum(parts), *by_domain.values())
  return jax.tree.map(np.ndarray.tolist, whole | {'domains': by_domain})


def main(x: Heads) -> None:
  if x.quick:
    shrink(x)
  check(x)
  folder, m, trial = held_out.begin(x)
  head = make(x, m.target)
  drafter = head.drafter(x.held_out.depth)
  params = train(
    'head',
    folder,
    x.optimization,
    head.init(jax.random.key(x.seed + 4), m.weights),
    loss_of(head, m.target, x.seed + 6),
    m.weights,
    batches(m),
    lambda params: trial.report(drafter, params),
  )
  path = folder / 'weights'
  if not path.exists():
    config = {
      **head.config,
      **measure(head, trial, drafter, params),
      'target': checkpoints.fingerprint(x.target),
      'training': folders.cost(folder, ('head', x.optimization, 1)),
    }
    heads.save(path, config, params)
  stored = heads.read(path, head.config['kind'])[1]
  print(json.dumps({'head': str(path)} | trial.report(drafter, stored)))
