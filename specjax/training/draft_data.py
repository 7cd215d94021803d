"""Kinds of data that a draft is distilled on.

Each is a function of a `Lesson` that returns how to make a batch: (step,
drafts) -> tokens [G, B, T+1], where G is 1, or else the number of drafts in
the order of their names, when each has windows of its own. A batch depends on
the step alone, or on files that are kept under the step.
"""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specjax.errors import UserError
from specjax.models.transformer import Model
from specjax.training.generated import (
  Material,
  draw_texts,
  draw_windows,
  write_target_texts,
  write_texts,
)
from specjax.training.recipes import Distillation

Batches = Callable[[int, Any], np.ndarray]


class Lesson(NamedTuple):
  """The material that a kind of data is made from."""

  material: Material
  recipe: Distillation
  draft: Model
  folder: pathlib.Path


def corpus(lesson: Lesson) -> Batches:
  """A fixed set: windows of the corpus."""
  x, o = lesson.recipe, lesson.recipe.distillation

  def batch(step, drafts):
    del drafts  # Unused.
    m = lesson.material
    return draw_windows(m, o.batch, o.length + 1, x.seed + 3, step)[None]

  return batch


def target_text(lesson: Lesson) -> Batches:
  """Texts that the target wrote."""
  x, o = lesson.recipe, lesson.recipe.distillation
  texts = write_target_texts(lesson.material)

  def batch(step, drafts):
    del drafts  # Unused.
    return draw_texts(texts, o.batch, o.length + 1, x.seed + 2, step)[None]

  return batch


def own_text(lesson: Lesson) -> Batches:
  """Texts that the draft itself wrote a few steps ago (on-policy).

  All drafts continue the same prompts. Texts of a refresh are files under its
  step: a run that resumes between two of them reads what it had read.
  """
  x, o, m = lesson.recipe, lesson.recipe.distillation, lesson.material
  current: dict[int, list[np.ndarray]] = {}

  def texts_of(name, params, since, step):
    folder = lesson.folder / 'own_texts' / name / f'{since:06d}'
    if step > since and not folder.exists():
      raise UserError(
        f'{folder} is missing, which drafts of step {since} wrote, and step '
        f'{step} goes on from there; remove the checkpoints of this training '
        'to begin it again'
      )
    seed = x.seed + 100 + since
    return write_texts(
      folder, lesson.draft, params, x.own_texts, m.streams, x.mixture, seed
    )

  def batch(step, drafts):
    since = step - step % x.refresh
    if since not in current:
      current.clear()
      current[since] = [
        texts_of(name, drafts[name], since, step) for name in sorted(drafts)
      ]
    return np.stack(
      [
        draw_texts(texts, o.batch, o.length + 1, x.seed + 2, step)
        for texts in current[since]
      ]
    )

  return batch
