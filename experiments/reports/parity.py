"""What the rows of `experiments.parity` say: texts, and how they part."""

from experiments.reports.markdown import markdown

_CELLS = 'drafter', 'verifier', 'gamma', 'domain', 'against', 'dtype', 'batch'
_LEGEND = """
margin: largest logit less the smaller one of the two tokens', in a pass without
a cache. noise: twice the largest change of a logit when the same text is scored
in the shapes that were compared; 16 largest logits and the two; at least one
unit in their last place. rounding: the largest change, once, when every weight
moves by its last place. A tie has a margin within the noise and within 16 times
the rounding.
"""


def _number(value: float | None) -> str:
  return '-' if value is None else f'{value:.1e}'


def summary(rows: list[dict]) -> str:
  """Markdown: what was compared, and every difference."""
  head = [*_CELLS, 'compared', 'identical', 'ties', 'bugs']
  lines = [
    [str(r[name]) for name in (*_CELLS, 'compared')]
    + [str(r['compared'] - r['ties'] - r['bugs'])]
    + [str(r['ties']), str(r['bugs'])]
    for r in rows
  ]
  measured = 'gap', 'margin', 'noise', 'rounding'
  found = [
    [r['drafter'], str(r['gamma']), str(d['prompt']), str(d['position'])]
    + [' / '.join(map(str, d['tokens']))]
    + [_number(d[name]) for name in measured]
    + [d['verdict']]
    for r in rows
    for d in r['differences']
  ]
  text = markdown(head, lines) + '\n'
  if found:
    names = ['drafter', 'gamma', 'prompt', 'position', 'tokens', *measured]
    text += f'\n{markdown([*names, "verdict"], found)}\n{_LEGEND}'
  return text
