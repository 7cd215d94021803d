"""Runs, and rows of a results folder, made up for tests; and committed rows."""

import functools
import re

import numpy as np

from specjax import reports
from specjax.bench.measure import Run
from specjax.stats import folders
from specjax.stats.row import SCHEMA
from specjax.types import Counts
from tests.support.processes import ROOT


@functools.cache
def committed() -> dict[str, list[dict]]:
  """The rows of each folder of committed results, by its path; none is bad."""
  rows, warnings = folders.read_folders(ROOT / 'results', reports.fault)
  assert warnings == []
  return rows


def run(tokens, calls, seconds=1.0, texts=None, prefill=0.5, **counts) -> Run:
  """A batch of rows with so many new tokens and target calls each.

  Its steps drafted one token and accepted none, but for the `counts` that are
  given.
  """
  tokens, calls = np.array(tokens), np.array(calls)
  none = np.zeros_like(calls)
  made = Counts(
    histogram=np.stack([calls, none], 1), tried=none[:, None],
    accepted=none[:, None], drafted=none, tokens=tokens, target_calls=calls,
    overlap=0.0 * none, misses=none,
  )  # fmt: skip
  texts = texts or [[1] * n for n in tokens]
  return Run(texts, made._replace(**counts), seconds, prefill, 1)


def around(value: float, count: int = 8, by: float = 0.02) -> list[float]:
  """Numbers of this mean, each a little off: prompts are not all alike."""
  away = [by, -by] * (count // 2) + [0.0] * (count % 2)
  return [value + x for x in away]


def by_name(table) -> list[dict]:
  """The lines of a table, whose cells have the names of their columns."""
  return [dict(zip(table.head, line, strict=True)) for line in table.lines]


def cells(text: str) -> list[list[str]]:
  """Cells of the head and the lines of the first table in a Markdown text."""
  table = re.search(r'(?:^\|.*\n?)+', text, re.MULTILINE)[0].splitlines()
  lines = [line.strip('|').split('|') for line in (table[0], *table[2:])]
  return [[cell.strip() for cell in line] for line in lines]


def predicted(calls: dict, domains: dict | None = None) -> list[dict]:
  """Rows of a prediction: 100 tokens of each domain, c 0.1 and v 1.1.

  Calls are those of each drafter at gamma 1, 2, ...; a domain takes some more.
  """
  made = []
  for drafter, counts in calls.items():
    gammas = list(range(1, len(counts) + 1))
    for domain, more in (domains or {'code': 0}).items():
      units = [[(n + more) / 2] * 2 for n in counts]
      replay = {'part': 'replay', 'drafter': drafter, 'domain': domain}
      replay |= {'temperature': 0.0, 'tokens': 100, 'gammas': gammas}
      made.append(replay | {'unit_target_calls': units})
    cost = {'part': 'cost', 'drafter': drafter, 'c': 0.1, 'v': 1.1}
    made += [cost | {'gamma': gamma} for gamma in gammas]
  return made


def row(**changes) -> dict:
  """A row of an acceptance-only run: eight prompts, alpha 1/2, tau 2."""
  prompts = changes.get('prompts', 8)
  found = {
    'schema': SCHEMA, 'program': 'run', 'config': 'made up', 'drafter': 'draft',
    'verifier': 'token', 'gamma': 2, 'domain': 'code', 'temperature': 0.0,
    'lossless': True, 'timed': False, 'batch': 1, 'prompts': prompts,
    'prompts_hash': 'abc', 'prompts_from': None, 'new_tokens': 8, 'alpha': 0.5,
    'alpha_ci': [0.4, 0.6], 'tau': 2.0, 'tau_ci': [1.9, 2.1],
    'tau_without_bonus': 1.0, 'acceptance_by_position': [0.5, 0.25],
    'acceptance_by_context': None, 'autocorrelation': None,
    'unit_tokens': [8] * prompts, 'unit_target_calls': [4] * prompts,
    'unit_overlap': [4.0] * prompts, 'unit_overlap_of_rule': [4.0] * prompts,
    'unit_prefixes': [8] * prompts, 'unit_seconds': None,
    'identical_to_plain': prompts, 'differences': [], 'repetition': 0.25,
    'device': 'a machine', 'versions': {'jax': '0', 'python': '3'},
    'commit': None,
  }  # fmt: skip
  speeds = ('tokens_per_second', 'baseline_tokens_per_second', 'speedup')
  speeds += ('speedup_ci', 'predicted_speedup', 'c', 'v')
  return found | dict.fromkeys(speeds) | changes
