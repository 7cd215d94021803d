"""A study of one file: rules beside the most that any exact rule accepts."""

import itertools

import numpy as np
import pytest

from experiments import optimal_acceptance as study
from specjax import reports, verify
from specjax.certify import exact
from specjax.errors import UserError
from specjax.stats import optimal
from tests.support import heads_in_numpy, tiny
from tests.support.resumed import run_twice


def settings(folder, tmp_path, **changes):
  x = tiny.experiment(
    folder, timed=False, quick=False, drafters=('draft',), temperatures=(1.0,),
    max_new_tokens=3,
  )  # fmt: skip
  more = {'results': str(tmp_path / 'rows'), 'drafts': (1,), 'draws': 4}
  return study.OptimalAcceptance(**vars(x) | more | changes)


@pytest.mark.slow
def test_rows_of_a_tiny_pair(folder, tmp_path, capsys):
  rows = run_twice(study, settings(folder, tmp_path), capsys)
  assert {r['places'] for r in rows} == {6}
  assert [r['unit_places'] for r in rows] == [[3, 3]] * len(rows)
  table = [x for x in reports.summary(rows).splitlines() if x[:3] == '| 1']
  assert f'{rows[-1]["share"]:.3f}' in table[-1]
  assert len(reports.summary(rows[:1])) > 40
  (axes,) = reports.figures(rows)[0](rows).axes
  shown = {line.get_label(): [*line.get_ydata()] for line in axes.lines}
  assert shown.pop('bound') == [rows[0]['bound']]
  assert shown == {r['verifier']: [r['accepted']] for r in rows}


def test_a_drafter_that_draws_nothing_is_named(folder, tmp_path):
  with pytest.raises(UserError, match=r'^drafters'):
    study.run(settings(folder, tmp_path, drafters=('ngram',)))


# Each rule under one of the laws that it takes.
@pytest.mark.parametrize(
  ('siblings', 'rules'),
  [
    ('independent', ('k_seq', 'multi_path', 'importance')),
    ('different', ('recursive', 'naive')),
    ('hub', ('hub',)),
  ],
)
def test_draws_in_equal_parts_give_the_enumerated_chance(
  siblings, rules, float64
):
  """Twelfths divide every distribution that two drafts come from."""
  p, q = np.array([0.1, 0.6, 0.3]), np.array([1 / 2, 1 / 4, 1 / 4])
  parts = (np.arange(12) + 0.5) / 12
  u = np.array([list(itertools.product(parts, repeat=2))])
  law = study.LAWS[siblings]
  source = exact.tree((0, 0), not law, law=law)
  texts = exact.Texts(3, 2)
  both = exact.constant(p, texts), exact.constant(q, texts)
  for name in rules:
    rule = getattr(verify, name)
    found = study.accepted(rule, law, u, p[None], q[None])
    wanted = exact.efficiency(rule, source, texts, *both) - 1
    assert found == pytest.approx([wanted], abs=1e-12)
    assert found <= study.bound(2, siblings)(p, q) + 1e-12


def test_numbers_are_spread_evenly():
  u = study.spread(np.random.default_rng(0), (3, 8, 2))
  assert (np.sort(np.floor(8 * u), 1) == np.arange(8)[:, None]).all()
  assert len({*u.ravel()}) == u.size


def test_fewer_tokens_have_the_bound_of_all():
  random = np.random.default_rng(0)
  logits = 3 * random.normal(size=(2, 4000))
  logits[1] = logits[0] + random.normal(size=4000)
  p, q = heads_in_numpy.softmax(logits)
  few = study.fewer_tokens(p, q, 256)
  assert [x.shape for x in few] == [(288,)] * 2
  for n in (1, 4):
    whole = optimal.acceptance(p, q, n)
    assert optimal.acceptance(*few, n) == pytest.approx(whole, abs=1e-3)
  same = study.fewer_tokens(p, q, 4000)
  np.testing.assert_allclose(same, (p, q), rtol=1e-5)
