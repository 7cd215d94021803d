"""Trains a drafter that reads the features of a frozen target.

The target reads every batch anew, or its features are kept on a disk
(`training.features`), where they are a thousand times as large as the text. A
method brings its own `Trainable` (see `specjax.drafters.heads.trainable`);
nothing here knows of any.
"""

import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from specjax import checkpoints
from specjax.checkpoints.precision import in_dtype
from specjax.cli.names import Names, resolve, resolve_function
from specjax.drafters.heads import files
from specjax.drafters.heads.trainable import (
  Divergence,
  Seen,
  Trainable,
  cross_entropy,
)
from specjax.errors import UserError, need
from specjax.models import transformer
from specjax.models.sharding import Placement, make_mesh
from specjax.models.transformer import Model
from specjax.training import examples, folders, held_out
from specjax.training.features import Store, forward
from specjax.training.generated import (
  Material,
  draw_texts,
  draw_windows,
  write_target_texts,
  write_texts,
)
from specjax.training.held_out import Trial
from specjax.training.optimize import train
from specjax.training.recipes import ForTarget, Heads, Texts, need_positions
from specjax.training.train_pair import wide
from specjax.types import Drafter, Params

_TRAINABLE = Names('specjax.drafters.{}.trainable', 'medusa')
DIVERGENCE = Names('specjax.training.divergences.{}', 'cross_entropy')


def check_names(x: ForTarget) -> None:
  """Finds what a recipe names, and names it in full, as its folder does.

  Raises:
    UserError: there is no such function.
  """
  resolve_function('trainable', x.trainable, _TRAINABLE)
  x.trainable = _TRAINABLE.full(x.trainable)
  resolve_function('divergence', x.divergence, DIVERGENCE)


def check(x: Heads) -> None:
  """Checks what needs no weights.

  Raises:
    UserError: names the field and the remedy.
  """
  check_names(x)
  need(
    x.devices <= jax.device_count(),
    f'devices must be from 1 to the {jax.device_count()} that there are, got '
    f'{x.devices}',
  )
  x.check()


def shrink(x: Heads) -> None:
  """A toy version of a recipe that shows that every stage runs."""
  x.folder += '-quick'
  x.data = x.folder
  x.every = 40
  x.texts = x.own_texts = Texts(count=8, batch=8, length=32)
  x.optimization.shrink(8, 32)
  x.held_out.shrink()


def make(x: ForTarget, target: Model) -> Trainable:
  """The head of a recipe.

  Raises:
    UserError: its function does not take these options, or refuses them.
  """
  try:
    function, more = resolve('trainable', x.trainable), {}
    if 'eos' in inspect.signature(function).parameters:
      more['eos'] = checkpoints.eos_ids(x.target)
    return function(target, **more | x.options)
  except (TypeError, ValueError) as error:
    raise UserError(
      f'options: {x.trainable} does not take {dict(x.options)}: {error}'
    ) from error


def see(
  target: Model, weights: Any, tokens: jax.Array, taps, features=None
) -> Seen:
  """A target on whole windows [B, T], whose features may be known already.

  Args:
    target: the model.
    weights: its parameters.
    tokens: of the windows.
    taps: layers whose features are read.
    features: [B, T, len(taps) + 1, E] of `features.Store`, or None.
  """
  if features is None:
    hidden, last = forward(target, weights, tokens, taps)
  else:
    features = features.astype(transformer.dtype_of(weights))
    hidden, last = features[:, :, :-1], features[:, :, -1]
  return Seen(tokens, hidden, wide(target.head(weights, last)))


def loss_of(
  head: Trainable,
  target: Model,
  seed: int,
  divergence: Divergence = cross_entropy,
  dtype: str = 'float32',
):
  """(drafter's parameters, the target's, a batch) -> the head's losses.

  Each step has a key of its own, in whichever process it is made.
  """
  root = jax.random.key(seed)

  def loss(params, frozen, batch):
    known = batch.get('features')
    seen = see(target, frozen, batch['tokens'], head.taps, known).replace(
      counts=batch.get('counts'), divergence=divergence
    )
    seen = seen.replace(hidden=in_dtype(seen.hidden, dtype))
    key = jax.random.fold_in(root, batch['step'])
    return head.loss(Params(frozen, params), seen, key)

  return loss


def spread(devices: int, batch: Callable[..., dict]) -> tuple[Callable, ...]:
  """Returns batches split by rows over devices, and how the rest is put."""
  if devices == 1:
    return batch, jax.device_put
  placement = Placement(make_mesh(devices, 1))
  return lambda *x: placement.put_rows(batch(*x)), placement.put_whole


def from_examples(m: Material) -> Callable[[int, Any], dict[str, Any]]:
  """(number, parameters) -> windows of examples, what counts, the number."""
  x, o = m.recipe, m.recipe.optimization
  learned = m.examples.learned

  def batch(number, params):
    tokens, counts = examples.draw(
      learned, o.batch, o.length, x.seed + 3, number
    )
    return {'tokens': tokens, 'counts': counts, 'step': np.int32(number)}

  return batch


def own_texts(m: Material, model: Model) -> Callable[[int, Any], np.ndarray]:
  """(number, parameters) -> texts that a drafter wrote some batches ago.

  Texts of a refresh are files under its number: a run that resumes between two
  of them reads what it had read.
  """
  x, kept = m.recipe, {}

  def texts(number, params):
    since = number - number % x.refresh
    if since not in kept:
      folder = pathlib.Path(x.folder) / 'own_texts' / f'{since:06d}'
      need(
        number == since or folder.exists(),
        f'{folder} is missing, and batch {number} goes on from there; remove '
        'the checkpoints of this training to begin it again',
      )
      kept.clear()
      kept[since] = write_texts(
        folder,
        model,
        params,
        x.own_texts,
        m.streams,
        x.mixture,
        x.seed + 100 + since,
      )
    return kept[since]

  return texts


def batches(
  m: Material, model: Model | None = None
) -> Callable[[int, Any], dict[str, Any]]:
  """(number, parameters) -> windows of each kind of text, and the number.

  Args:
    m: what is learned from.
    model: the drafter as a model that writes texts of its own.
  """
  if m.examples is not None:
    return from_examples(m)
  x, o = m.recipe, m.recipe.optimization
  written = round(x.share * o.batch)
  own = min(round(x.own_share * o.batch), o.batch - written)
  left = o.batch - written - own
  texts = write_target_texts(m) if written else None
  write = own_texts(m, model) if own else None

  def batch(number, params):
    parts = []
    if texts is not None:
      parts.append(draw_texts(texts, written, o.length, x.seed + 2, number))
    if write is not None:
      made = write(number, params)
      parts.append(draw_texts(made, own, o.length, x.seed + 2, number))
    if left:
      parts.append(draw_windows(m, left, o.length, x.seed + 3, number))
    return {'tokens': np.concatenate(parts), 'step': np.int32(number)}

  return batch


def measure(
  head: Trainable, trial: Trial, drafter: Drafter, params: Any
) -> dict[str, Any]:
  """Measures a head in the target's text of held-out prompts.

  Only places behind the prompts count: what a head is asked while drafting.

  Returns:
    Its sums over all texts, and under `domains` those of each domain.
  """
  if head.measure is None:
    return {}
  begin = min(len(text) for texts in trial.texts.values() for text in texts)

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


def recipe_loss(m: Material, head: Trainable):
  """The `loss_of` a head as its recipe says."""
  x = m.recipe
  divergence = resolve('divergence', x.divergence, DIVERGENCE)
  return loss_of(head, m.target, x.seed + 6, divergence, x.optimization.dtype)


def save(
  name: str, m: Material, head: Trainable, params: Any, measured=dict
) -> pathlib.Path:
  """Writes what a training made, as its kind is kept, unless it is there.

  Its config has the facts that `measured` returns, too.
  """
  x = m.recipe
  path = pathlib.Path(x.folder) / 'weights'
  if not path.exists():
    config = {
      **head.config,
      **measured(),
      'target': checkpoints.fingerprint(x.target),
      'training': folders.cost(path.parent, name, x.optimization),
    }
    if head.save is not None:
      head.save(path, config, params, m.tokenizer)
    else:
      files.save(path, config, params)
  return path


def read(head: Trainable, path: Any, fingerprint=None) -> Any:
  """Reads the weights of a drafter; see `files.read`."""
  if head.read is not None:
    return head.read(path)
  return files.read(path, head.config['kind'], fingerprint)[1]


def score(report: dict[str, Any], patience: int) -> dict[str, Any]:
  """A report with what the best checkpoint is chosen by, where one is."""
  if not patience:
    return report
  taus = [one['tau'] for one in report.values()]
  return report | {'score': round(float(np.mean(taus)), 5)}


def main(x: Heads) -> dict[str, Any]:
  if x.quick:
    shrink(x)
  check(x)
  m, trial = held_out.begin(x)
  if m.examples is not None:
    print(examples.describe(m.examples))
  head = make(x, m.target)
  need(
    not x.own_share or head.model is not None,
    f'own_share is {x.own_share}, but {x.trainable} writes no text without '
    'its target: leave it at 0, or train lm',
  )
  drafter = head.drafter(x.held_out.depth)
  need_positions(drafter.positions, 'the drafter has', x.positions())
  o, batch = x.optimization, batches(m, head.model)
  if x.features:
    batch = Store(x, m.target, m.weights, head.taps).beside(batch)
  batch, place = spread(x.devices, batch)
  params = train(
    'head',
    pathlib.Path(x.folder),
    o,
    head.init(jax.random.key(x.seed + 4), m.weights),
    recipe_loss(m, head),
    m.weights,
    batch,
    lambda params: score(trial.report(drafter, params), o.patience),
    place,
  )
  measured = functools.partial(measure, head, trial, drafter, params)
  path = save('head', m, head, params, measured)
  return {'head': str(path)} | trial.report(drafter, read(head, path))
