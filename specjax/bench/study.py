"""Parts that studies share: checks, fields of rows, ends."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from specjax import checkpoints, prompts
from specjax.bench import checks, results
from specjax.bench.config import Experiment, Temperatures
from specjax.bench.methods import Loaded
from specjax.bench.plan import Plan, plan
from specjax.cli.fields import Count, check_fields
from specjax.errors import need
from specjax.reports import conditions, intervals
from specjax.reports.markdown import Columns, paragraph


@dataclasses.dataclass
class Refilled(Experiment):
  """Prompts that share the rows of a batch, with texts of several lengths.

  Attributes:
    batch: rows.
    shortest: fewest new tokens; drawn evenly from here to `max_new_tokens`.
    group: prompts read at once, at most.
    repeats: passes over all prompts.
  """

  batch: Count = 16
  max_new_tokens: Count = 128
  shortest: Count = 16
  group: Count = 4
  repeats: Count = 2
  temperatures: Temperatures = (1.0,)

  def shrink(self) -> None:
    """Leaves the quick version: few and short texts, through few rows."""
    self.batch, self.repeats = min(self.batch, 4), 1
    self.prompts.count = min(self.prompts.count, 4)
    self.max_new_tokens = min(self.max_new_tokens, 16)
    self.shortest = min(self.shortest, 4)

  def check_lengths(self) -> None:
    """Raises a UserError unless there are lengths to draw."""
    check_fields(self)
    need(
      self.shortest <= self.max_new_tokens,
      f'shortest is {self.shortest}, but max_new_tokens '
      f'{self.max_new_tokens}: lower one or raise the other',
    )

  def draw_lengths(self, random: np.random.Generator, count: int) -> np.ndarray:
    """Draws the new tokens of so many prompts, [count]."""
    return random.integers(self.shortest, self.max_new_tokens + 1, count)


def plan_one(x: Experiment, *single: str) -> Plan:
  """Returns the plan of a study that decodes single prompts.

  Args:
    x: its config.
    *single: fields that may have one value only.

  Raises:
    UserError: names the field and the remedy.
  """
  checks.need_one_turn(x.prompts)
  planned = plan(x)
  found = {'temperatures': planned.temperatures, 'verifiers': planned.rules}
  for name in single:
    several = found[name]
    need(len(several) == 1, f'{name} must be a single one here, got {several}')
  return planned


def facts(
  program: str, x: Experiment, built: Loaded, texts: list[list[int]]
) -> dict:
  """Returns the fields that all rows of a study have."""
  return {
    'program': program,
    'config': x.name,
    'domain': ' and '.join(built.prompts),
    'target': built.target_name,
    'target_revision': checkpoints.revision_of(built.plan.target),
    'dtype': built.target.dtype,
    **built.held,
    'batch': x.batch,
    'prompts': len(texts),
    'prompts_hash': prompts.digest(texts),
    'seed': x.seed,
    'baseline': built.baseline.fields(),
    **results.conditions(),
  }


def texts(built: Loaded) -> list[list[int]]:
  """Returns the prompts of all domains."""
  return [text for chosen in built.prompts.values() for text in chosen.texts]


_KINDS: dict[str, Any] = {
  'text': str,
  'flag': bool,
  'count': int,
  'number': float,
  'maybe': float | None,
  'maybe_text': str | None,
  'maybe_count': int | None,
  'ends': tuple[float | None, ...] | None,
  'numbers': tuple[float, ...],
  'counts': tuple[int, ...],
  'texts': tuple[str, ...],
  'table': dict[str, Any],
}


def fields(**names: str) -> dict[str, Any]:
  """Returns the types of a row's fields: number='tau alpha', count='gamma'.

  Args:
    **names: fields by kind, with spaces between them. `maybe` is a number or
      None, `ends` an interval, `numbers` a list, `table` holds others by name.
      A field whose name ends in ? may be missing.
  """
  return {n: _KINDS[kind] for kind, all in names.items() for n in all.split()}


def alike(**names: str) -> Callable[[dict], dict[str, Any]]:
  """Returns the `fields` of a study whose rows all have the same fields."""
  types = fields(**names)
  return lambda row: types


def shown(name: str, form: str = '.2f') -> Callable[[dict], str]:
  """Returns a function that shows a field of a row, with its interval if any.

  Args:
    name: of the field.
    form: of numbers; empty: as Python writes them. A value that is None or
      missing, and with an empty form also 0, is shown as `-`.
  """

  def show(row: dict) -> str:
    if not form:
      return str(row.get(name) or '-')
    return intervals.shown(row, name, form)

  return show


def columns(*titles: tuple) -> Columns:
  """Returns columns of a table: (title, function), or (title, field, form)."""
  return tuple(
    (title, what[0] if callable(what[0]) else shown(*what))
    for title, *what in titles
  )


def headline(what: str, rows: list[dict], *facts: str) -> str:
  """Returns a sentence, and where and how rows were measured."""
  where, how = conditions.machine(rows, facts), conditions.baseline(rows)
  text = f'{what}. {where}; {how}.' if how else f'{what}. {where}.'
  return f'{paragraph(text)}\n'


def publish(folder: results.Folder) -> None:
  """Publishes the rows of a study; the last line is one JSON document."""
  results.publish(folder)
  print(json.dumps({'results': str(folder.path), 'rows': len(folder.rows)}))
