"""Rows of `specjax parity`: which texts are identical, how others part."""

from specjax.reports import verdicts
from specjax.reports.conditions import machine, values
from specjax.reports.markdown import blocks, markdown, number, paragraph

_CELLS = 'drafter', 'verifier', 'gamma', 'domain', 'against', 'dtype', 'batch'
_MEASURED = 'gap', 'margin', 'noise', 'rounding'
_LEGEND = """
margin: largest logit less the smaller one of the two tokens', in a pass without
a cache. noise: twice the largest change of a logit when the same text is scored
in the shapes that were compared; 16 largest logits and the two; at least one
unit in their last place. rounding: the largest change, once, when every weight
moves by its last place. A tie has a margin within the noise and within 16 times
the rounding.
"""


def headline(rows: list[dict]) -> str:
  """Counts texts that are the same, that part at ties, and by bugs."""
  texts, ties, bugs = (
    sum(r[name] for r in rows) for name in ('compared', 'ties', 'bugs')
  )
  verdict = (
    f'{texts - ties - bugs} of {texts} greedy texts, compared with '
    f'{values(rows, "against")} in {values(rows, "dtype")}, are identical'
  )
  if ties or bugs:
    verdict += f'; {ties} part at a tie and {bugs} by a bug'
  facts = [f'batch {values(rows, "batch")}']
  if values(rows, 'new_tokens'):
    facts.append(f'{values(rows, "new_tokens")} new tokens each')
  return blocks(paragraph(f'{verdict}. {machine(rows, facts)}.'))


def summary(rows: list[dict]) -> str:
  """Returns the verdict, what was compared, and every difference."""
  head = [*_CELLS, 'compared', 'identical', 'ties', 'bugs']
  lines = [
    [str(r[name]) for name in (*_CELLS, 'compared')]
    + [str(r['compared'] - r['ties'] - r['bugs'])]
    + [str(r['ties']), str(r['bugs'])]
    for r in rows
  ]
  differences = [
    [r['drafter'], str(r['gamma']), str(d['prompt']), str(d['position'])]
    + [' / '.join(map(str, d['tokens']))]
    + [number(d[name], '.1e') for name in _MEASURED]
    + [d['verdict']]
    for r in rows
    for d in r['differences']
  ]
  text = f'{headline(rows)}\n### What was compared\n\n{markdown(head, lines)}\n'
  if differences:
    names = ['drafter', 'gamma', 'prompt', 'position', 'tokens', *_MEASURED]
    table = markdown([*names, 'verdict'], differences)
    text += f'\n### Where texts part\n\n{table}\n{_LEGEND}'
    if where := verdicts.partings(d for r in rows for d in r['differences']):
      text += f'\n{paragraph(f"In passes over these texts {where}.")}\n'
  return text
