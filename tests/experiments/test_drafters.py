"""Drafters beside one another, from rows whose numbers are known."""

from specjax.reports import drafters
from tests.support import rows as made

COST = {'seconds': 90.0, 'tokens': 1_500_000, 'steps': 9, 'machine': 'abacus'}


def timed(drafter, speedup, **changes):
  """A row with times: c 0.1 and v 1.4 at gamma 2."""
  return made.row(
    **{
      'drafter': drafter,
      'timed': True,
      'speedup': speedup,
      'speedup_ci': [speedup - 0.1, speedup + 0.1],
      'predicted_speedup': speedup,
      'tokens_per_second': 100.0,
      'baseline_tokens_per_second': 100.0,
      'c': 0.1,
      'v': 1.4,
      'histogram': [1, 1, 2],
      'drafted': 8,
      'load': 'specjax.drafters.lm.load',
      'draft': 'small',
      'options': {},
      'parameters': 250_000,
      'bytes': 1_000_000,
      'training': COST,
    }
    | changes
  )  # fmt: skip


def test_what_an_old_row_does_not_say_is_no_number():
  table, *_ = drafters.of_each([made.row(), timed('a', 1.2)])
  (found,) = (x for x in made.by_name(table) if x['drafter'] == 'draft')
  assert found['parameters'] == found['training'] == '-'


def test_which_drafter_when():
  rows = [
    timed('draft', 1.5, tau=3.0, v=2.0, tau_ci=[2.9, 3.1]),
    timed('small', 1.45, tau=2.0, v=1.1, parameters=1000),
    timed('ngram', 1.2, tau=1.5, parameters=0),
    timed('exit', 0.9, tau=1.1, parameters=0),
    timed('cheat', 3.0, lossless=False),  # It is another distribution.
    timed('heavy', 0.9, tau=9.0, c=1.5),
    timed('ngram', 1.7, domain='structured', parameters=0),
    timed('draft', 1.0, domain='structured', tau=3.0, v=2.0),
  ]
  (table,) = drafters.choices(rows)
  code, structured = table.lines
  assert code == [
    'code',
    '0',
    'undecided: draft 1.50, small 1.45',
    'small 0.00M',  # It has fewer parameters.
    'ngram 1.20',
    'draft 3.00',  # The heavy one costs more than a plain step.
    'draft 2.50',  # 3 tokens for 1 + 2 * 0.1 plain steps.
  ]
  assert structured[2:5] == ['ngram 1.70', 'ngram 0', 'ngram 1.70']
  few = [row | {'speedup_ci': None, 'tau_ci': None} for row in rows]
  assert {*drafters.choices(few)[0].lines[0][2:]} == {'no interval', '-'}
  alone = [row for row in rows if row['drafter'] == 'ngram']
  assert drafters.choices(alone) == []
  untimed = [row | dict.fromkeys(('speedup', 'c', 'v')) for row in rows]
  assert drafters.choices(untimed) == []


def sized(size, domain, tokens, **more):
  options = {'vocabulary': size, 'frequencies': 'x'} if size else {}
  return {
    'load': 'lm', 'draft': 'd', 'drafter': f'd {size}', 'verifier': 'token',
    'gamma': 3, 'temperature': 0.0, 'batch': 1, 'domain': domain,
    'options': options, 'parameters': 1_000_000 + 1000 * size,
    'c': 0.1 + 0.1 * (domain == 'b'), 'prompts': 6, 'prompts_hash': domain,
    'tau': sum(tokens) / 60, 'unit_tokens': tokens,
    'unit_target_calls': [10] * 6,
  } | more  # fmt: skip


def test_sizes_are_compared_prompt_by_prompt():
  """Half of the tokens: 10% less on every prompt, however they differ."""
  whole, half = [20, 30, 10, 20, 30, 10], [18, 27, 9, 18, 27, 9]
  rows = [
    sized(512, 'a', half),
    sized(0, 'a', whole),
    sized(1024, 'a', whole),
    sized(0, 'b', whole),
    sized(512, 'b', [*half[:5], 10]),
  ]
  (table,) = drafters.vocabularies(rows)
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
    sized(0, 'a', tokens),
    sized(512, 'a', tokens, draft='other'),
    sized(512, 'a', tokens, options={'vocabulary': 512, 'window': 8}),
    sized(512, 'a', tokens, gamma=2),
    sized(512, 'a', tokens, options=None),
  ]
  assert drafters.vocabularies(rows) == []
