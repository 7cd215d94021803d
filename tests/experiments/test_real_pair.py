"""Promises against rows of predictions, made so that each answer is known."""

import numpy as np
import pytest

from experiments.papers import findings, real_pair
from experiments.papers.claims import FAILS, HOLDS, UNDECIDED
from experiments.papers.findings import PAGES

CLAIMS = {claim.text: claim for claim in real_pair.CLAIMS}
PROMPTS = 20


def wave(level, spread=0.02):
  """A number of each prompt, about a level."""
  return [level * (1 + spread * (-1) ** i) for i in range(PROMPTS)]


def replay(drafter, domain, temperature=0.0, alpha=0.8, tau=(2.0, 3.0, 4.0)):
  """A row of 100 tokens a prompt; prompts differ more for some drafters."""
  spread = 0.01 + len(drafter) / 1000
  return {
    'part': 'replay', 'drafter': drafter, 'domain': domain,
    'temperature': temperature, 'prompts': PROMPTS, 'prompts_hash': domain,
    'unit_tokens': [100] * PROMPTS, 'unit_overlap': wave(100 * alpha, spread),
    'gammas': [2, 4, 8],
    'unit_target_calls': [wave(100 / each, spread) for each in tau],
  }  # fmt: skip


def cost(drafter, gamma, step):
  """A step takes so many plain steps."""
  plain = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0]
  drift = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.0]
  whole = [step * a * b for a, b in zip(plain, drift, strict=True)]
  seconds = {'plain': plain, 'whole': whole, 'scored': whole}
  return {
    'part': 'cost',
    'drafter': drafter,
    'gamma': gamma,
    'seconds_per_step': seconds,
  }


def check(domain, speedup, temperature=0.0):
  """A row of as many tokens on both sides."""
  return {
    'part': 'check', 'drafter': 'sibling', 'gamma': 4, 'domain': domain,
    'temperature': temperature, 'prompts': PROMPTS, 'prompts_hash': domain,
    'unit_baseline_seconds': wave(speedup),
    'unit_baseline_tokens': [50] * PROMPTS, 'unit_seconds': [1.0] * PROMPTS,
    'unit_tokens': [50] * PROMPTS,
  }  # fmt: skip


def both(rows):
  """Rows as of prompts without times, and with them."""
  return {'real_pair/acceptance/x': rows, 'real_pair/timed/x': rows}


def outcome(begin, rows):
  (name,) = (name for name in CLAIMS if name.startswith(begin))
  found = CLAIMS[name](both(rows))
  assert found
  return findings.overall(found)


@pytest.mark.parametrize(
  ('begin', 'row', 'expected'),
  [
    ('On code', replay('sibling', 'humaneval', alpha=0.75), HOLDS),
    ('On code', replay('sibling', 'humaneval', alpha=0.9), FAILS),
    ('On questions', replay('sibling', 'qa', alpha=0.7), HOLDS),
    ('On questions', replay('sibling', 'qa', alpha=0.5), FAILS),
    ('On creative', replay('sibling', 'writing', alpha=0.55), HOLDS),
    ('On creative', replay('sibling', 'writing', alpha=0.8), FAILS),
    ('Code is decoded', check('humaneval', 2.7), HOLDS),
    ('Code is decoded', check('humaneval', 1.7), FAILS),
    ('Code is decoded', check('humaneval', 2.5), UNDECIDED),
    ('Speculation is faster', check('qa', 1.2), HOLDS),
    ('Speculation is faster', check('qa', 0.8), FAILS),
    # Equation 1 gives 1.94 tokens at alpha .5 and gamma 4.
    ('An acceptance of one half', cost('sibling', 4, 1.0), HOLDS),
    ('An acceptance of one half', cost('sibling', 4, 1.2), FAILS),
    ('tau / (gamma + 1)', replay('sibling', 'qa'), HOLDS),
    ('tau / (gamma + 1)', replay('sibling', 'qa', tau=(1.0, 3, 8)), FAILS),
    # 1 + .8 + .64 + .512 + .4096 = 3.36
    ('tau is what', replay('sibling', 'qa', tau=(2, 3.3, 4)), HOLDS),
    ('tau is what', replay('sibling', 'qa', tau=(2, 2.9, 4)), FAILS),
  ],
)
def test_one_row(begin, row, expected):
  assert outcome(begin, [row]) == expected


def test_what_is_accepted_is_of_one_pair_domain_and_drafter():
  """Whether rows have alpha or what it is made of."""
  row = replay('sibling', 'qa') | {'alpha': 0.5, 'alpha_ci': [0.49, 0.51]}
  del row['unit_overlap']
  assert outcome('On questions', [row]) == FAILS
  claim = next(c for name, c in CLAIMS.items() if name.startswith('On quest'))
  assert not claim({'predict': [replay('sibling', 'qa')]})
  assert not claim(both([replay('sibling', 'translation')]))
  assert not claim(both([replay('ngram', 'qa')]))


@pytest.mark.parametrize(('alpha', 'expected'), [(0.9, HOLDS), (0.7, FAILS)])
def test_texts_under_a_schema_are_compared_with_free_ones(alpha, expected):
  """Only of a draft that is masked, and that has a distribution to mask."""
  common = {'domain': 'mbpp', 'temperature': 0.0, 'prompts_hash': 'mbpp'}
  common |= {'unit_prefixes': [100] * PROMPTS, 'prompts': PROMPTS}

  def row(language, level, turn=0, masked=True, draft='a'):
    overlap = np.roll(wave(100 * level), turn).tolist()
    own = {'language': language, 'masked': masked, 'draft': draft}
    name = 'sibling' if draft else 'ngram'
    return {**common, **own, 'drafter': name, 'unit_overlap': overlap}

  rows = [row('none', 0.8), row('function', alpha, 2)]
  rows += [row('function', 0.1, 2, masked=False)]
  rows += [row('none', 0.8, draft=None), row('function', 0.1, 2, draft=None)]
  (name,) = (x for x in CLAIMS if x.startswith('More is accepted of texts'))
  found = CLAIMS[name]({'real_pair/constrained': rows})
  assert len(found) == 1
  assert findings.overall(found) == expected
  assert not CLAIMS[name]({'constrained': rows})


@pytest.mark.parametrize(('speedup', 'expected'), [(1.2, HOLDS), (1.8, FAILS)])
def test_the_gain_falls_with_the_batch(speedup, expected):
  """Rows that are decoded together have one time."""
  rows = []
  for batch, level in ((1, 1.5), (2, speedup), (4, 2 * speedup - 1.5)):
    row = check('qa', level) | {'batch': batch}
    for name in ('unit_baseline_seconds', 'unit_seconds'):
      row[name] = row[name][: PROMPTS // batch // 2 * 2]
    for name in ('unit_baseline_tokens', 'unit_tokens'):
      row[name] = row[name][: len(row['unit_seconds']) * batch]
    rows.append(row)
  claim = CLAIMS['The gain of speculation shrinks with the batch']
  found = claim({'real_pair/batches': rows})
  cells = [one.cell for one in found]
  assert ['1 to 2' in cells[0], '2 to 4' in cells[1]] == [True, True]
  for one in found:
    assert one.estimate.value == pytest.approx(1.5 - speedup)
  assert findings.overall(found) == expected
  assert not claim({'batches': rows})


@pytest.mark.parametrize('right', [True, False])
def test_predictions_are_compared_with_the_loop(right):
  """Three tokens a step of 1.7 plain ones are 1.76 times as fast.

  And of two plain ones 1.5 times.
  """
  seen, expected = replay('sibling', 'qa'), HOLDS if right else FAILS
  rows = [cost('sibling', 4, 2.0 if right else 1.5), check('qa', 1.5)]
  assert outcome('The speed-up is what', [seen, *rows]) == expected
  costs = [cost('sibling', 4, 1.7 if right else 2.5), cost('sibling', 8, 9.0)]
  assert outcome('Other text', [seen, *costs]) == expected
  claim = next(c for name, c in CLAIMS.items() if name.startswith('Other'))
  assert not claim(both([replay('sibling', 'humaneval'), *costs]))
  (found,) = claim(both([seen, *costs]))
  assert 'sibling, 4' in found.cell or 'gamma 4' in found.cell


def test_the_page_names_every_claim():
  page = PAGES[1]
  text = findings.text(both([replay('sibling', 'qa')]), page)
  assert text.startswith(f'# {page.title}\n')
  assert all(claim.text in text for claim in real_pair.CLAIMS)
  assert '### On questions of fact' in text
  assert '### On code' not in text
