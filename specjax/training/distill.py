"""Distils one draft by every divergence on every kind of data.

DistillSpec's grid (Zhou et al., arXiv:2310.08461). All drafts start from one
that was trained by next-token cross-entropy, which is also trained on as a
control: what distillation gained is more than what so many steps gained.

The divergences of one kind of data are trained together, so that the target
reads each batch once.
"""

import dataclasses
import json
import pathlib
from typing import Any

import jax

from specjax import checkpoints
from specjax.cli.names import Names, resolve, resolve_function
from specjax.drafters import lm
from specjax.errors import need
from specjax.models import transformer
from specjax.models.transformer import Model
from specjax.training import draft_data, folders, generated, held_out
from specjax.training.optimize import apart, make_optimizer, train
from specjax.training.recipes import Distillation, Optimization, Texts
from specjax.training.train_pair import (
  cross_entropy,
  draft_size,
  model_of,
  wide,
)

TRAINING = 'training.json'  # beside a finished draft: what it cost
GRID = 'grid.jsonl'
_CHOICES = {
  'divergences': Names('specjax.training.divergences.{}', 'forward_kl'),
  'kinds': Names('specjax.training.draft_data.{}', 'target_text'),
}


def check(x: Distillation) -> None:
  """Checks what needs no weights.

  Raises:
    ValueError: names the field and the remedy.
  """
  for field, choices in _CHOICES.items():
    names = tuple(map(choices.full, getattr(x, field)))
    need(len(names) > 0, f'{field} is empty: name at least one')
    for name in names:
      resolve_function(field, name, choices)
    setattr(x, field, names)  # As the folder has them.
    short = [short_name(name) for name in names]
    need(
      len({*short}) == len(short),
      f'{field}: {", ".join(names)} end in the same name; leave one out',
    )
  x.check()


def short_name(name: str) -> str:
  return name.rpartition('.')[2]


def shrink(x: Distillation) -> None:
  """A toy version of a recipe that shows that every stage runs."""
  x.folder += '-quick'
  x.data = x.folder
  x.every = 40
  x.width = 64
  x.refresh = 4
  x.divergences, x.kinds = x.divergences[:2], x.kinds[-2:]
  x.texts = x.own_texts = Texts(count=8, batch=8, length=32)
  for o in (x.undistilled, x.distillation):
    o.shrink(8, 32)
  for held in (x.held_out, x.final):
    held.shrink()


def divergence_loss(target: Model, draft: Model, divergences: dict[str, Any]):
  """The loss of drafts that are trained together.

  Args:
    target: the target model, whose parameters are frozen.
    draft: the model of all drafts.
    divergences: by the name of the draft that learns by it.

  Returns:
    (drafts, frozen, tokens [G, B, T+1]) -> a scalar for each draft; see
    `kinds`.
  """

  def loss(drafts, frozen, tokens):
    inputs = tokens[..., :-1]
    log_p = [
      jax.nn.log_softmax(wide(transformer.score(target, frozen, group)))
      for group in inputs
    ]
    losses = {}
    for i, name in enumerate(sorted(divergences)):
      group = i % len(log_p)
      log_q = jax.nn.log_softmax(
        transformer.score(draft, drafts[name], inputs[group])
      )
      losses[name] = divergences[name](log_p[group], log_q).mean()
    return losses

  return loss


@dataclasses.dataclass(frozen=True)
class Grid:
  """One run of the program, with what its stages share."""

  x: Distillation
  folder: pathlib.Path
  material: generated.Material
  draft: Model
  trial: held_out.Trial

  def report(self, params):
    drafter = lm.make(self.draft, self.trial.x.depth)
    return self.trial.report(drafter, params)

  def next_token(self, name: str, o: Optimization, params, seed: int):
    """Trains by next-token cross-entropy on the corpus."""

    def loss(params, frozen, tokens):
      del frozen  # Unused.
      logits = transformer.score(self.draft, params, tokens[:, :-1])
      return cross_entropy(logits, tokens[:, 1:]).mean()

    def batch(step, params):
      del params  # Unused.
      m = self.material
      return generated.draw_windows(m, o.batch, o.length + 1, seed, step)

    return train(name, self.folder, o, params, loss, None, batch, self.report)

  def distil(self, kind: str, params) -> dict[str, Any]:
    """Trains the divergences of one kind of data together."""
    x, o = self.x, self.x.distillation
    divergences = {
      short_name(name): resolve('divergences', name) for name in x.divergences
    }
    folder = self.folder / short_name(kind)
    lesson = draft_data.Lesson(self.material, x, self.draft, folder)
    return train(
      short_name(kind),
      self.folder,
      o,
      dict.fromkeys(divergences, params),
      divergence_loss(self.material.target, self.draft, divergences),
      self.material.weights,
      resolve('kinds', kind)(lesson),
      lambda drafts: {name: self.report(drafts[name]) for name in divergences},
      apart(make_optimizer(o)),
    )

  def export(self, name: str, params, cost: dict[str, Any]) -> pathlib.Path:
    """Writes a finished draft where it is not written yet."""
    path = self.folder / 'drafts' / name
    if not path.exists():
      checkpoints.save(path, self.draft, params, self.material.tokenizer)
    if not (path / TRAINING).exists():
      (path / TRAINING).write_text(json.dumps(cost, indent=2) + '\n')
    return path


def judge(grid: Grid, paths: dict[str, pathlib.Path]) -> list[dict[str, Any]]:
  """Measures the finished drafts, from their stored weights."""
  m = grid.material
  trial = held_out.prepare(grid.x.final, m.target, m.weights, m.tokenizer)
  rows = []
  for name, path in paths.items():
    model, params = checkpoints.load(path)
    by_temperature = trial.report(lm.make(model, trial.x.depth), params)
    rows.append({'draft': name} | by_temperature)
    values = ' '.join(f'{t} {v["tau"]:.3f}' for t, v in by_temperature.items())
    print(f'{name:32} tau {values}', flush=True)
  (grid.folder / GRID).write_text(''.join(json.dumps(r) + '\n' for r in rows))
  return rows


def main(x: Distillation) -> None:
  if x.quick:
    shrink(x)
  check(x)
  folder, m, trial = held_out.begin(x)
  vocab_size = m.target.config.vocab_size
  draft = model_of(draft_size(x.width), vocab_size, x.max_positions)
  grid = Grid(x, folder, m, draft, trial)
  first = draft.init(jax.random.key(x.seed + 4))
  base = grid.next_token('undistilled', x.undistilled, first, x.seed + 5)
  control = grid.next_token('control', x.distillation, base, x.seed + 3)
  begun = ('undistilled', x.undistilled, 1)
  paths = {
    'undistilled': grid.export(
      'undistilled', base, folders.cost(folder, begun)
    ),
    'control': grid.export(
      'control',
      control,
      folders.cost(folder, begun, ('control', x.distillation, 1)),
    ),
  }
  for kind in x.kinds:
    short = short_name(kind)
    drafts = grid.distil(kind, base)
    cost = folders.cost(folder, begun, (short, x.distillation, len(drafts)))
    for name, params in drafts.items():
      whole = f'{short}-{name}'
      paths[whole] = grid.export(whole, params, cost)
  rows = judge(grid, paths)
  distilled = [r for r in rows if r['draft'] not in ('undistilled', 'control')]
  temperature = f'T={x.final.temperatures[0]:g}'
  best = max(distilled, key=lambda r: r[temperature]['tau'])
  print(json.dumps({'drafts': len(rows), 'best': best}))
