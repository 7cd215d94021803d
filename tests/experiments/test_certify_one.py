"""One rule, drafter or policy on trial, as a user puts it there."""

import json
import re
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import checkpoints, pair, verify
from specjax.bench.config import Certificate
from specjax.certify import drafter_trial, rule_trial, small_steps, trial
from specjax.errors import UserError
from specjax.programs import certify
from specjax.stats import folders
from tests.support import rules_on_trial

_PLACE = {
  'rule': 'tests.support.rules_on_trial',
  'drafter': 'tests.support.drafters_on_trial',
  'policy': 'tests.support.policies_on_trial',
  'foreign': 'tests.support.foreign_on_trial',
}
slow = pytest.mark.slow

LOSSY = [
  pytest.param('rule', 'by_logits', 'total variation', marks=slow),
  ('rule', 'ties_fail', 'of a small step: one token'),
  pytest.param('rule', 'first_sibling_only', 'total variation', marks=slow),
  pytest.param('drafter', 'reports_top_two', 'breaks law 1', marks=slow),
]
# The output is right all the same.
BREAKS = [
  pytest.param('rule', 'above_one', 7, 'clip', marks=slow),
  pytest.param('drafter', 'keeps_rejected', 3, 'learns=True', marks=slow),
]
RIGHT = [
  pytest.param('rule', 'drawn_only', marks=slow),
  pytest.param('rule', 'unguarded', marks=slow),
  pytest.param('drafter', 'remembers', marks=slow),
  pytest.param('policy', 'unlikely', marks=slow),
]


def settings(kind, name, **more) -> Certificate:
  path = name.partition(':')[0]
  full = f'{_PLACE[kind]}.{name}' if path and '.' not in path else name
  return Certificate(quick=True, **{kind: full}, **more)


def certified(tmp_path, capsys, kind, name, **more):
  """The exit status, the page, and the last line of the program."""
  more = {'rounds': 8} | more  # Power is the program's own affair.
  x = settings(kind, name, results=str(tmp_path / 'rows'), **more)
  status = 0
  try:
    certify.main(x)
  except SystemExit as ended:
    status = ended.code
  out = capsys.readouterr().out
  page, _, last = out.rstrip().rpartition('\n')
  assert (tmp_path / 'rows' / 'summary.md').read_text().strip() == page.strip()
  return status, page, json.loads(last)


@pytest.mark.parametrize(('kind', 'name', 'why'), LOSSY)
def test_what_is_wrong_is_convicted(
  tmp_path, capsys, monkeypatch, kind, name, why
):
  if name == 'ties_fail':  # No whole text shows it, with any draft.
    monkeypatch.setattr(rule_trial, '_QUICK', 1)
    monkeypatch.setattr(rule_trial, 'SHAPES', small_steps.SHAPES[:2])
  status, page, said = certified(tmp_path, capsys, kind, name)
  assert (status, said['exact'], said['verdict']) == (3, False, 'lossy')
  assert why in said['why']
  assert f'Verdict: lossy: {said["why"]}' in re.sub(r'\s+', ' ', page)
  found = said['counterexample']
  assert found['expected'] != found['obtained']
  assert '### Counterexample' in page


@slow
@pytest.mark.parametrize(
  ('name', 'law'),
  [
    ('one_coin', 1),
    ('own_seed', 6),
    ('drops_unlikely', 2),
    ('unnormalised', 5),
  ],
)
def test_a_law_that_drafts_break_is_named_with_a_counterexample(name, law):
  """From drafts behind texts that were just read, without the loop."""
  drafter, tiny = trial.load(f'{_PLACE["drafter"]}.{name}')
  moment = drafter_trial.Watched(tiny, drafter, quick=True).fresh()
  assert drafter_trial.broken(moment.drafts, 64, 1e-5) == law
  found = drafter_trial.smallest([moment], law, 1e-5)
  assert found['expected'] != found['obtained']
  assert found['text']


@pytest.mark.parametrize(('kind', 'name', 'law', 'remedy'), BREAKS)
def test_a_broken_law_that_leaves_the_output_right_has_a_remedy(
  tmp_path, capsys, kind, name, law, remedy
):
  status, page, said = certified(tmp_path, capsys, kind, name, rounds=4)
  assert (status, said['exact']) == (2, True)
  assert said['verdict'] == f'exact, but breaks law {law}'
  assert remedy in said['remedy']
  assert f'Remedy: {said["remedy"]}' in re.sub(r'\s+', ' ', page)
  found = said['counterexample']
  # A chance above 1 is taken for 1.
  assert (found['expected'] == found['obtained']) == (law == 7)
  rows = folders.existing(str(tmp_path / 'rows')).rows
  assert [r['law'] for r in rows if r.get('holds') is False] == [law]
  if kind == 'drafter':  # Else every planted bug breaks the law, too.
    assert any(r['part'] == 'planted' and r['caught'] for r in rows)


@pytest.mark.parametrize(('kind', 'name'), RIGHT)
def test_what_is_right_is_acquitted(tmp_path, capsys, kind, name):
  status, page, said = certified(tmp_path, capsys, kind, name)
  assert (status, said['exact'], said['verdict']) == (0, True, 'exact')
  assert said['counterexample'] is None
  planted = [
    row
    for row in folders.existing(str(tmp_path / 'rows')).rows
    if row['part'] == 'planted' and row['applies']
  ]
  assert planted
  assert all(row['caught'] for row in planted)
  assert ('It is not certified for' in page) == (name == 'drawn_only')


def test_a_draft_with_another_tokenizer_is_tried_through_tables(folder):
  """It reads and drafts letters, of which it has other ids than the target."""
  drafter, tiny = trial.load(f'lm:{folder / "draft"}')
  assert drafter.depth == 3
  # a, b, ab and the end of text are tokens of both.
  words = checkpoints.load_tokenizer(pair.path('target')).get_vocab()
  places = np.asarray(tiny.params.drafter.tables.places).tolist()
  assert places[:2] == [words['a'], words['b']]
  assert places[3] < 2048


def obtained_by_hand(found) -> dict[str, Fraction]:
  """The next token of a step of one drafted token, from what was told."""
  got = {name: Fraction(0) for name in found['expected']}
  for draft in found['drafts']:
    chance, keeps = Fraction(draft['chance']), Fraction(draft['accepts'][0])
    got[draft['drafted']] += chance * keeps
    then = draft['then_draws_from'].get('nothing accepted', [])
    for name, share in zip(got, then, strict=False):
      got[name] += chance * (1 - keeps) * Fraction(share)
  return got


@pytest.mark.parametrize('name', ['leftover_to_first', 'ties_fail'])
def test_a_counterexample_can_be_checked_by_hand(name):
  rule = getattr(rules_on_trial, name)
  shapes = small_steps.SHAPES[:1]
  found = [
    fault for _, each in rule_trial.steps(rule, shapes) for fault in each
  ]
  fault = rule_trial.smallest(rule, found, shapes, 50)
  told = small_steps.describe(rule, fault)
  by_hand = obtained_by_hand(told)
  assert {k: str(v) for k, v in by_hand.items()} == told['obtained']
  target = dict(
    zip(told['expected'], told['p']['after every text'], strict=True)
  )
  assert told['expected'] == target != told['obtained']


@pytest.mark.parametrize(
  ('rule', 'wrong'),
  [(verify.token, 0), (verify.lenience(0.5), 1), (rules_on_trial.unguarded, 0)],
)
def test_small_steps_of_rules(rule, wrong):
  shapes = rule_trial.taken('rule: x', rule, [])
  rows = [row for row, _ in rule_trial.steps(rule, shapes)]
  assert sum(row['examples'] for row in rows) > 400
  assert any(row['faults'] for row in rows) == wrong


@slow
def test_the_search_finds_what_the_grid_has_not():
  """A rule that is wrong only where a probability is a fifth."""

  def accept(draft, scores):
    right = verify.token.accept(draft, scores)
    fifth = abs(scores.probs[0, 0] - 0.2) < 1e-9
    return jnp.where(fifth, 1.0, right)

  rule = verify.token._replace(accept=accept)
  shapes = small_steps.SHAPES[:1]
  found = [f for _, each in rule_trial.steps(rule, shapes) for f in each]
  assert found == []
  fault = rule_trial.smallest(rule, found, shapes, 500)
  told = small_steps.describe(rule, fault)
  assert next(iter(told['p'].values()))[0] == '1/5'


BAD = [
  ('rule', 'tokn', "did you mean 'token'?"),
  ('rule', 'no.such', 'cannot be imported'),
  ('rule', 'nothing', 'cannot be imported'),
  ('rule', 'no_rule', 'is no rule'),
  ('rule', 'lenience', 'behind a colon, as in name:0.5'),
  ('rule', 'wrong_shape', 'accept must give floats[1] for one token'),
  ('rule', 'whole_numbers', 'rest must give floats[3]'),
  ('rule', 'no_numbers', 'accept is NaN for one token, p = (1/2, 1/2)'),
  ('rule', 'raises', "raised AttributeError: 'Draft' object has no"),
  ('drafter', 'ngrm', "did you mean 'ngram'?"),
  ('drafter', 'nothing', 'cannot be imported'),
  ('drafter', 'lm', 'names no directory'),
  ('drafter', 'ngram:/nowhere', 'takes no path'),
  ('drafter', 'pathless', "write it as load(target, path='')"),
  ('drafter', 'broken', 'raised RuntimeError: no such weights'),
  ('drafter', 'changes_its_tree', 'a second call makes another program'),
  ('policy', 'chance', 'goes_on must give one bool, got float32[]'),
  ('policy', 'grows', 'learn must give a memory as start does'),
  ('policy', 'many', 'start must give scalars, one row has one memory'),
  ('policy', 'divides', 'learn gives inf where 0 of 1 drafted tokens'),
  ('policy', 'asks_the_host', 'asks the host'),
  ('policy', 'confidence:2', 'threshold must be in [0, 1]'),
  ('foreign', 'sampler', 'has no module'),
  ('foreign', 'nowhere.at_all', 'cannot be imported'),
  ('foreign', 'nothing', 'cannot be imported'),
  ('foreign', 'no_function', 'is no function but str'),
  ('foreign', 'mutates', 'changes its argument logits'),
  ('foreign', 'draws_its_own', 'draws coins of its own'),
  ('foreign', 'too_many', 'returns 3 tokens for a draft of 1'),
  ('foreign', 'none_at_all', 'returns no token for a row'),
  ('foreign', 'fewer_rows', 'rows for'),
  ('foreign', 'beyond', 'outside of the vocabulary of 2'),
  ('foreign', 'probabilities', 'must be whole numbers, got float32'),
  ('foreign', 'with_hole', 'behind a -1'),
  ('foreign', 'raises', 'raised RuntimeError: no such device'),
]
_OURS = {
  *('tokn', 'ngrm', 'lenience', 'lm'),
  *('ngram:/nowhere', 'confidence:2', 'sampler'),
}


@pytest.mark.parametrize(('kind', 'name', 'message'), BAD)
def test_bad_input_ends_in_one_line_before_anything_runs(kind, name, message):
  ours = name in _OURS
  x = Certificate(quick=True, **{kind: name}) if ours else settings(kind, name)
  rows: list[dict] = []
  with pytest.raises(UserError) as raised:
    trial.find(x).run(rows.append)
  said = str(raised.value)
  assert message in said
  assert said.startswith(kind)
  assert '\n' not in said
  assert rows == []
