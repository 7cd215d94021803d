"""Trains what a recipe describes.

  specjax train configs/embedded_pair.py

Every stage leaves its result under the recipe's folder and is skipped when
it is there; a stage that was stopped resumes from its last checkpoint, with
bit-identical parameters in the end. What was made, and the command that
measures it, is printed last.
"""

import json

from specjax.cli import command
from specjax.training import (
  count_tokens,
  online,
  train_heads,
  train_pair,
)
from specjax.training.recipes import Counts, Heads, Online, Recipe

PROGRAMS = {
  Recipe: train_pair.main,
  Heads: train_heads.main,
  Online: online.main,
  Counts: count_tokens.main,
}


def main(recipe) -> None:
  made = PROGRAMS[type(recipe)](recipe)
  flags = f'--target.path={made.get("target") or recipe.target}'
  if isinstance(recipe, Counts):
    flags += f' --drafters=counts:{made["folder"]}'
  elif draft := made.get('head') or made.get('draft'):
    flags += f' --draft.path={draft}'
  print(command.spelled(f'What is it worth?\n\n  specjax run pair {flags}'))
  print(json.dumps(made))


def start() -> None:
  command.run(main, tuple(PROGRAMS), resumes=True)
