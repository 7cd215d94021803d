"""Drafts of fewer tokens beside the same draft with all of them."""

from specjax.reports import draft_vocabularies


def row(size, domain, tokens, **more):
  options = {'vocabulary': size, 'frequencies': 'x'} if size else {}
  return {
    'load': 'lm',
    'draft': 'd',
    'drafter': f'd {size}',
    'verifier': 'token',
    'gamma': 3,
    'temperature': 0.0,
    'batch': 1,
    'domain': domain,
    'options': options,
    'parameters': 1_000_000 + 1000 * size,
    'c': 0.1 + 0.1 * (domain == 'b'),
    'prompts': 6,
    'prompts_hash': domain,
    'tau': sum(tokens) / 60,
    'unit_tokens': tokens,
    'unit_target_calls': [10] * 6,
  } | more


def test_sizes_are_compared_prompt_by_prompt():
  """Half of the tokens: 10% less on every prompt, however they differ."""
  whole, half = [20, 30, 10, 20, 30, 10], [18, 27, 9, 18, 27, 9]
  rows = [
    row(512, 'a', half),
    row(0, 'a', whole),
    row(1024, 'a', whole),
    row(0, 'b', whole),
    row(512, 'b', [*half[:5], 10]),
  ]
  (table,) = draft_vocabularies.tables(rows)
  assert table.head == ['tokens', 'parameters', 'c', 'tau, a', 'tau, b']
  assert [line[0] for line in table.lines] == ['all', '1024', '512']
  assert table.lines[0][1:4] == ['1.00M', '0.150', '2.00']
  assert table.lines[1][2:] == ['0.100', '2.00, +0.0', '-']
  assert table.lines[2][3] == '1.80, -10.0'
  change, interval = table.lines[2][4].split(', ', 1)[1].split(' ', 1)
  assert change == '-9.2'
  low, high = (float(x) for x in interval.strip('[]').split(', '))
  assert -12 < low < -9.2 < high < 0


def test_other_drafts_and_options_are_not_mixed():
  tokens = [20, 30, 10, 20, 30, 10]
  rows = [
    row(0, 'a', tokens),
    row(512, 'a', tokens, draft='other'),
    row(512, 'a', tokens, options={'vocabulary': 512, 'window': 8}),
    row(512, 'a', tokens, gamma=2),
    row(512, 'a', tokens, options=None),
  ]
  assert draft_vocabularies.tables(rows) == []
