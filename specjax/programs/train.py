"""Trains what a recipe describes.

  specjax train configs/embedded_pair.py

Every stage leaves its result under the recipe's folder and is skipped when
it is there; a stage that was stopped resumes from its last checkpoint, with
bit-identical parameters in the end.
"""

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
  PROGRAMS[type(recipe)](recipe)


def start() -> None:
  command.run(main, tuple(PROGRAMS), resumes=True)
