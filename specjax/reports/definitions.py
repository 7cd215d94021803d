"""Acceptance length and speed-up, as the field defines them."""

from specjax.reports import intervals
from specjax.reports.markdown import Columns, Table

_NOTE = """
A published number is one of these. **tau** is over all calls together (vLLM,
aiperf), **tau per request** the mean of the prompts' own (specdec_bench),
**tau per step** the mean of accepted + 1 over the whole steps (mean accepted
tokens of Spec-Bench). **speed-up** is the ratio of the times per token of all
prompts together, **speed-up of rates** that of the means of the prompts' tokens
per second (Spec-Bench).
""".strip()
_NUMBERS = (
  'tau',
  'tau_per_request',
  'tau_per_step',
  'speedup',
  'speedup_of_rates',
)


COUNTING = """
How it is counted: **alpha** is the mean of sum(min(p, q)) over prefixes that
the target generated, **tau** tokens per target call with the bonus or corrected
token, **no bonus** the mean accepted length of the whole steps: those that
began with room for gamma + 1 tokens. Any other step counts in tokens and target
calls alone, whatever it accepted; one in which the text ends counts with the
verdict on its whole draft, and a row that has finished counts nowhere. Where
nothing was proposed, beta is 0. Intervals are 95% over prompts (of speeds: over
batches); docs/measuring.md says how they are made. A number alone has none: its
units are too few, or its row does not hold them. The best of several is chosen
on the same prompts, so its number is on the high side.
"""
# Rows of programs that did not look for impossible values counted so.
BY_OUTCOME = """
These rows are of an older program, which left out a step that the limit cut
short, where it did: **no bonus**, acceptance by position and alpha_mle are
too low, by a tenth in texts of 12 tokens and less in longer ones. alpha and tau
are as they would be now.
"""


def _column(name: str):
  title = name.replace('_', ' ').replace('speedup', 'speed-up')
  return title, lambda row: intervals.shown(row, name)


def tables(rows: list[dict], columns: Columns) -> list[Table]:
  """All definitions of each row; no table of rows of older programs.

  Args:
    rows: of a run.
    columns: that say which method a row is of.
  """
  rows = [row for row in rows if row.get('tau_per_request') is not None]
  where: Columns = (
    ('domain', lambda row: row['domain']),
    ('temperature', lambda row: f'{row["temperature"]:g}'),
  )
  shown = (*where, *columns, *map(_column, _NUMBERS))
  return [Table.of('By definition', _NOTE, shown, rows)] if rows else []
