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
    'part': 'replay', 'drafter': drafter, 'domain': domain, 'target': 'a.gguf',
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


def check(domain, speedup):
  """A row of as many tokens on both sides."""
  return {
    'part': 'check', 'drafter': 'sibling', 'gamma': 4, 'domain': domain,
    'temperature': 0.0, 'prompts': PROMPTS, 'prompts_hash': domain,
    'unit_baseline_seconds': wave(speedup),
    'unit_baseline_tokens': [50] * PROMPTS, 'unit_seconds': [1.0] * PROMPTS,
    'unit_tokens': [50] * PROMPTS,
  }  # fmt: skip


def both(rows):
  """Rows as of prompts without times, and with them."""
  return {'real_pair/acceptance/x': rows, 'real_pair/timed/x': rows}


def claim_of(begin):
  (found,) = (claim for text, claim in CLAIMS.items() if text.startswith(begin))
  return found


def outcome(begin, rows):
  found = claim_of(begin)(both(rows))
  assert found
  return findings.overall(found)


@pytest.mark.parametrize(
  ('begin', 'domain', 'kept', 'broken'),
  [
    ('On code', 'humaneval', 0.75, 0.9),
    ('On questions', 'qa', 0.7, 0.5),
    ('On creative', 'writing', 0.55, 0.8),
  ],
)
def test_what_is_accepted(begin, domain, kept, broken):
  for alpha, expected in ((kept, HOLDS), (broken, FAILS)):
    assert outcome(begin, [replay('sibling', domain, alpha=alpha)]) == expected
    row = replay('sibling', domain, alpha=alpha) | {'alpha': alpha}
    row |= {'alpha_ci': [alpha - 0.01, alpha + 0.01]}
    del row['unit_overlap']
    assert outcome(begin, [row]) == expected
  # Only rows of the real pair, of the domain and the drafter, speak to it.
  claim = claim_of(begin)
  assert not claim({'predict': [replay('sibling', domain)]})
  assert not claim(both([replay('sibling', 'translation')]))
  assert not claim(both([replay('ngram', domain)]))


@pytest.mark.parametrize(
  ('begin', 'row', 'expected'),
  [
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


RISE = {'tau': ((1, 1.2, 1.3), (1, 1.8, 2))}


def pair(low, high, domains=('qa', 'qa'), temperatures=(0.0, 0.0), **levels):
  """Two rows whose levels are given in order."""
  names = zip((low, high), domains, temperatures, strict=True)
  return [
    replay(*name, **{k: v[i] for k, v in levels.items()})
    for i, name in enumerate(names)
  ]


@pytest.mark.parametrize(
  ('begin', 'names', 'more', 'levels'),
  [
    ('More is accepted of a small', ('ngram', 'smollm2'), {}, RISE),
    ('More is accepted of a small', ('smollm2', 'sibling'), {}, RISE),
    (
      'More is accepted at', ('sibling', 'sibling'),
      {'temperatures': (1.0, 0.0)}, RISE,
    ),
    (
      'Code is easier', ('sibling', 'sibling'),
      {'domains': ('roleplay', 'humaneval')}, RISE,
    ),
    ('Lookup that copies', ('ngram', 'suffix'), {}, RISE),
    (
      'Lookup gives more', ('ngram', 'ngram'),
      {'domains': ('writing', 'summarization')}, RISE,
    ),
  ],
)  # fmt: skip
def test_what_rises(begin, names, more, levels):
  assert outcome(begin, pair(*names, **more, **levels)) == HOLDS
  turned = {name: both[::-1] for name, both in levels.items()}
  assert outcome(begin, pair(*names, **more, **turned)) == FAILS


@pytest.mark.parametrize(
  'begin', ['Lookup that copies', 'More is accepted of a small']
)
def test_rows_of_other_targets_speak_of_lookup_alone(begin):
  """Each target is compared with itself."""
  rows = pair('ngram', 'suffix' if 'copies' in begin else 'smollm2', **RISE)
  other = [row | {'target': 'b.gguf'} for row in rows]
  both_folders = both(rows) | {'real_pair/lookup/b': other}
  found = claim_of(begin)(both_folders)
  cells = [one.cell.partition(',')[0] for one in found]
  assert cells == (['a.gguf', 'b.gguf'] if 'copies' in begin else ['qa'])


@pytest.mark.parametrize(
  ('tau', 'expected'), [(4.1, HOLDS), (3.0, FAILS), (3.75, UNDECIDED)]
)
def test_other_prompts_of_a_kind_give_as_many_tokens(tau, expected):
  rows = pair(
    *('sibling', 'sibling'), ('humaneval', 'mbpp'), tau=((2, 4, 5), (2, tau, 5))
  )
  assert outcome('Other prompts', rows) == expected


@pytest.mark.parametrize(
  ('alpha', 'expected'), [(0.9, HOLDS), (0.7, FAILS), (0.8, UNDECIDED)]
)
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
  claim = claim_of('More is accepted of texts')
  found = claim({'real_pair/constrained': rows})
  assert len(found) == 1
  assert findings.overall(found) == expected
  assert not claim({'constrained': rows})


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
  claim = claim_of('The gain of speculation shrinks with the batch')
  found = claim({'real_pair/batches': rows})
  cells = [one.cell for one in found]
  assert ['1 to 2' in cells[0], '2 to 4' in cells[1]] == [True, True]
  for one in found:
    assert one.estimate.value == pytest.approx(1.5 - speedup)
  assert findings.overall(found) == expected
  assert not claim({'batches': rows})


def test_four_bits_give_as_many_tokens():
  names, begin = ('sibling', 'sibling-int4'), 'A draft in four bits gives'
  near, far = ({'tau': ((2, 4, 5), (2, t, 5))} for t in (3.9, 3.0))
  assert outcome(begin, pair(*names, **near)) == HOLDS
  assert outcome(begin, pair(*names, **far)) == FAILS


@pytest.mark.parametrize(
  ('begin', 'ways'),
  [
    ('A draft of a tenth', (('sibling', 4), ('smollm2', 4))),
    ('A draft in four bits is faster', (('sibling', 4), ('sibling-int4', 4))),
    ('Drafts can be too long', (('sibling', 8), ('sibling', 4))),
  ],
)
def test_what_is_predicted_to_be_faster(begin, ways):
  """Every draft gives three tokens a step of four, and four of eight."""
  names = dict.fromkeys(name for name, _ in ways)
  rows = [replay(name, 'qa') for name in names]
  tokens = {4: 3.0, 8: 4.0}
  for change, expected in ((0.9, HOLDS), (1.1, FAILS)):
    (one, gamma), (other, length) = ways
    same = 2 * tokens[length] / tokens[gamma]
    costs = [cost(one, gamma, 2.0), cost(other, length, same * change)]
    assert outcome(begin, rows + costs) == expected
  assert not claim_of(begin)(both(rows))


@pytest.mark.parametrize(('step', 'expected'), [(1.7, HOLDS), (2.5, FAILS)])
def test_other_text_is_as_fast_as_the_fastest_way(step, expected):
  """Three tokens a step of 1.7 plain ones are 1.76 times as fast."""
  costs = [cost('sibling', 4, step), cost('sibling', 8, 9.0)]
  assert outcome('Other text', [replay('sibling', 'qa'), *costs]) == expected
  claim = claim_of('Other text')
  assert not claim(both([replay('sibling', 'humaneval'), *costs]))
  (found,) = claim(both([replay('sibling', 'qa'), *costs]))
  assert 'sibling, 4' in found.cell or 'gamma 4' in found.cell


@pytest.mark.parametrize(('step', 'expected'), [(2.0, HOLDS), (1.5, FAILS)])
def test_a_prediction_is_compared_with_the_loop(step, expected):
  """Three tokens a step of two plain ones are 1.5 times as fast."""
  rows = [replay('sibling', 'qa'), cost('sibling', 4, step), check('qa', 1.5)]
  assert outcome('The speed-up is what', rows) == expected


def test_the_page_names_every_claim():
  page = PAGES[1]
  text = findings.text(both([replay('sibling', 'qa')]), page)
  assert text.startswith(f'# {page.title}\n')
  assert all(claim.text in text for claim in real_pair.CLAIMS)
  assert '### On questions of fact' in text
  assert '### On code' not in text
