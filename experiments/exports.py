"""Rows of a folder in formats that other programs read.

A format is a function of the rows of one folder that returns the content of
files, by their paths below that folder.
"""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from specjax import reports
from specjax.reports import latex, profiles


def _cells(row: dict, before: str = '') -> dict[str, Any]:
  """Fields of a row as cells: of an object each field, of an interval its ends.

  Any other list is JSON.
  """
  cells: dict[str, Any] = {}
  for name, value in row.items():
    if isinstance(value, dict):
      cells |= _cells(value, f'{before}{name}.')
    elif name.endswith('_ci'):
      low, high = value or (None, None)
      cells |= {f'{before}{name}_low': low, f'{before}{name}_high': high}
    else:
      listed = isinstance(value, list)
      cells[f'{before}{name}'] = json.dumps(value) if listed else value
  return cells


def as_csv(rows: list[dict]) -> dict[str, str]:
  """A line for each row, and a column for each field that one of them has."""
  table = [_cells(row) for row in rows]
  text = io.StringIO()
  names = list(dict.fromkeys(name for cells in table for name in cells))
  writer = csv.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(table)
  return {'rows.csv': text.getvalue()}


def as_latex(rows: list[dict]) -> dict[str, str]:
  """The tables of the summary."""
  return {'tables.tex': latex.tables(reports.summary(rows))}


def as_profiles(rows: list[dict]) -> dict[str, str]:
  """A speculation profile of each drafter, rule and temperature of a run."""
  return {
    f'profiles/{name}/{profiles.FILE}': json.dumps(made, indent=2) + '\n'
    for name, made in profiles.profiles(rows).items()
  }


FORMATS: dict[str, Callable[[list[dict]], dict[str, str]]] = {
  'csv': as_csv,
  'latex': as_latex,
  'profile': as_profiles,
}
