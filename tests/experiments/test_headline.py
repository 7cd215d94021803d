"""The verdict on a run, from rows whose numbers can be checked by hand."""

import numpy as np
import pytest

from specjax.cli import command
from specjax.reports import intervals, page, plots, verdicts
from specjax.reports import run as run_report
from specjax.stats import metrics
from tests.support import rows as made


def cell(speedup=1.5, width=0.1, **changes):
  """A row with times: tau 2.2, and a step of 1.5 + 3 * 0.1 plain steps."""
  found = {
    'speedup': speedup, 'speedup_ci': [speedup - width, speedup + width],
    'gamma': 3, 'drafter': 'small', 'draft': 'small', 'c': 0.1, 'v': 1.5,
    'tau': 2.2, 'alpha': 0.6, 'timed': True, 'seed': 0, 'target': 'big',
    'drafted': 30, 'histogram': [4, 3, 2, 1], 'predicted_speedup': 2.2 / 1.8,
    'tokens_per_second': 90.0, 'baseline_tokens_per_second': 60.0,
  }  # fmt: skip
  return made.row(**(found | changes))


def said(*rows) -> list[dict]:
  """Returns the lines of the headline's table."""
  return made.by_name(run_report.headline_of(list(rows)).places)


def best_of_places(*rows) -> list[dict]:
  """Returns the lines of the table of places; `rows` are those of one place.

  A second place makes the table compare places.
  """
  other = [row | {'domain': 'prose'} for row in rows]
  (table,) = run_report.by_domain([*rows, *other])
  return [one for one in made.by_name(table) if one['domain'] == 'code']


LOOKUP = {'drafter': 'lookup', 'draft': None, 'gamma': 4}


def test_the_best_of_a_place_with_its_interval():
  rows = cell(1.2, **LOOKUP), cell(1.5), cell(1.3, drafter='large')
  (found,) = best_of_places(*rows)
  assert found == {
    'domain': 'code', 'temperature': '0', 'speculation': 'wins',
    'best': 'small', 'gamma': '3', 'speed-up': '1.50 [1.40, 1.60]',
    'lookup 4': '1.20 [1.10, 1.30]',
    'without weights': 'lookup 4: 1.20 [1.10, 1.30]',
  }  # fmt: skip
  (found,) = best_of_places(cell(draft='gpt'), cell(1.2, verifier='block'))
  assert (found['best'], found['rule']) == ('small (draft gpt)', 'token')
  assert found['without weights'] == '-'
  assert run_report.by_domain([cell()]) == []


def test_a_place_without_an_interval_names_no_best():
  rows = [cell(9.0, speedup_ci=None), cell(1.3, domain='prose')]
  (table,) = run_report.by_domain(rows)
  assert [line['domain'] for line in made.by_name(table)] == ['prose']
  assert 'has too few prompts for an interval in 1' in table.note
  assert run_report.by_domain([cell(speedup_ci=None)] * 2) == []
  assert run_report.best(rows[:1]) is None


def test_the_verdict_is_about_the_first_drafter():
  lookup = cell(1.2, **LOOKUP)
  mine = cell(0.4, drafter='lm', draft='mine', c=0.7, v=1.2)
  found = run_report.headline_of([mine, lookup]).verdict
  for words in (
    'lm (draft mine), gamma 3, does not pay: 0.40 [0.30, 0.50] times',
    'gives 2.20 tokens (tau) and costs 3.30 steps',
    '0.70 for each of 3 drafted tokens (c)',
    'break even with c < 0.333 or alpha > 0.87.',
    'best alternative, lookup, gamma 4, pays: 1.20 [1.10, 1.30]',
  ):
    assert words in found
  other = run_report.headline_of([lookup, mine]).verdict
  assert other.startswith('lookup, gamma 4, pays: 1.20')
  assert [line['drafter'] for line in said(mine, lookup)] == [
    'lm (draft mine)',
    'lookup',
  ]


def test_no_other_is_called_best_without_an_interval():
  noise = cell(9.0, drafter='noise', speedup_ci=None)
  found = run_report.headline_of([cell(0.8), noise]).verdict
  assert 'noise' not in found
  assert 'No other drafter has an interval' in found
  assert 'drafter' not in run_report.headline_of([cell(0.8)]).verdict.split()


def units(seconds, **changes):
  """A row with the times of eight prompts, over plain decoding of one each."""
  numbers = made.around(seconds, by=0.05)
  return cell(
    1 / seconds, unit_seconds=numbers, unit_baseline_seconds=[1.0] * 8,
    unit_baseline_tokens=[8] * 8, target_calls=32, **changes,
  )  # fmt: skip


def test_places_are_pooled_over_their_prompts():
  rows = [units(0.5), units(1.0, domain='prose', c=0.3)]
  found = verdicts.pooled(rows)
  # Sixteen prompts took 16 plain and 12 seconds.
  assert found['speedup'] == pytest.approx(16 / 12)
  low, high = found['speedup_ci']
  assert 1 < low < 16 / 12 < high < 1.8
  assert (found['c'], found['tau']) == (0.2, 2.0)
  (line,) = said(*rows)
  assert line['speed-up'].startswith('1.33 [')
  verdict = run_report.headline_of(rows).verdict
  assert 'over 2 domains.' in verdict
  # A prompt at two temperatures is one unit.
  both = [units(0.5), units(1.0, temperature=1.0)]
  seconds = np.sum([row['unit_seconds'] for row in both], 0)
  tokens = np.sum([row['unit_tokens'] for row in both], 0)
  known = metrics.speedup([2.0] * 8, [16] * 8, seconds, tokens)
  warm = verdicts.pooled(both)
  assert warm['speedup'] == pytest.approx(16 / 12)
  assert warm['speedup_ci'] == pytest.approx(known.interval)
  untimed = [row | {'unit_seconds': None} for row in rows]
  assert verdicts.pooled(untimed)['speedup_ci'] is None
  rare = cell(1.0, unit_tokens=[8] * 8, unit_target_calls=[8] * 7 + [5])
  assert verdicts.pooled([rare, rare | {'domain': 'prose'}])['tau_ci'][0] >= 1


@pytest.mark.parametrize(
  ('costs', 'named'),
  [
    ({'v': 0.97}, 'v 0.97'),
    ({'c': -0.02}, 'c -0.02'),
    ({'v': 0.9, 'c': -0.1}, 'v 0.90 and c -0.10'),
    ({'v': 0.996, 'c': -0.004}, ''),  # As they are printed, they can be.
  ],
)
def test_costs_that_cannot_be_are_called_noise(costs, named):
  verdict = run_report.headline_of([cell(**costs)]).verdict
  assert ('noise' in verdict) == bool(named)
  assert named in verdict
  assert ('--results' in verdict) == bool(named)


def test_a_drafter_that_lacks_a_place_is_not_compared():
  rows = [cell(1.2), cell(1.2, domain='prose'), cell(2.0, **LOOKUP)]
  assert [r['drafter'] for r in verdicts.of_drafters(rows)] == ['small']


def test_parameters_decide_what_has_no_weights_where_rows_have_them():
  # A head beside the target has a draft of None and weights all the same.
  head = cell(1.4, drafter='head', draft=None, parameters=5)
  exits = cell(1.1, 0.05, drafter='exit', draft='its layers', parameters=0)
  (found,) = best_of_places(cell(parameters=9), head, exits)
  assert found['without weights'].startswith('exit 3: 1.10')


def test_a_sure_win_comes_before_a_larger_number_that_is_none():
  (found,) = best_of_places(cell(1.4, 0.6, drafter='wide'), cell(1.3))
  assert (found['best'], found['speculation']) == ('small', 'wins')


@pytest.mark.parametrize(
  ('row', 'state'),
  [
    (cell(1.05), 'undecided'),
    (cell(0.95), 'undecided'),
    (cell(0.8), 'loses'),
    (cell(1.2), 'wins'),
    (cell(3.0, speedup_ci=None), 'unknown'),
  ],
)
def test_an_interval_decides(row, state):
  found = run_report.headline_of([row])
  assert said(row)[0]['speculation'] == state
  assert found.slow == (state in ('undecided', 'loses'))


def test_the_command_is_that_of_a_program(monkeypatch):
  monkeypatch.setattr('sys.argv', ['specjax run', 'pair', '--prompt=a b'])
  monkeypatch.setattr(command, 'program', lambda: 'python -m specjax run')
  assert command.given() == "python -m specjax run pair '--prompt=a b'"
  monkeypatch.setattr(command, 'program', lambda: 'python -m pytest')
  assert command.given() == ''


@pytest.mark.parametrize(
  ('changes', 'needed'),
  [
    # tau 2.2 of 4 tokens, v 1.5 and 3 * 0.1 unless said otherwise.
    ({'v': 3.0}, 'v < 1.90, alpha > 0.87'),
    ({'v': 1.2, 'c': 0.7}, 'c < 0.333, alpha > 0.87'),
    ({'v': 2.1}, 'v < 1.90, c < 0.033, alpha > 0.66'),
    # Equation 1 is of chains.
    ({'v': 2.1, 'drafted': 90}, 'v < 1.90, c < 0.033, tau > 2.40'),
    ({'v': 4.5, 'c': 0.5}, 'no one change'),
    ({}, '-'),  # The costs promise a gain.
    ({'c': None, 'v': None}, '-'),
  ],
)
def test_what_breaks_even(changes, needed):
  assert verdicts.to_break_even(cell(0.8, **changes)) == needed
  (line,) = said(cell(0.8, **changes))
  assert line.get('to break even', '-') == needed


def test_lossy_rules_never_win():
  lossy = cell(3.0, verifier='typical', lossless=False)
  assert said(lossy, cell(1.2))[0]['speed-up'] == '1.20 [1.10, 1.30]'
  found = run_report.headline_of([lossy])
  assert found.places is None
  assert 'distribution' in found.verdict


def test_what_cannot_be_believed_is_said_first_and_decides_nothing():
  wrong = cell(9.0, drafter='magic', impossible=['tau 9.00 is above 4.'])
  bug = cell(5.0, drafter='buggy', differences=[{'verdict': 'bug'}])
  tie = cell(1.4, drafter='tied', differences=[{'verdict': 'tie'}])
  rows = [wrong, bug, tie, cell(1.2)]
  found = run_report.headline_of(rows)
  assert found.markdown().startswith('2 of 4 rows')
  assert said(*rows)[0]['drafter'] == 'tied (draft small)'
  assert run_report.best(rows)['drafter'] == 'tied'
  (table,) = run_report.cells(rows)
  names = [line[0] for line in table.lines]
  assert names == ['magic (!)', 'buggy (!)', 'tied', 'small']
  assert 'magic (!), token, gamma 3: tau 9.00 is above 4.' in table.note


def test_a_draft_whose_rows_cannot_be_believed_is_named():
  wrong = cell(9.0, impossible=['tau 9.00 is above 4.'])
  rows = [wrong, cell(1.2, domain='prose')]
  rows += [cell(1.1, **LOOKUP), cell(1.1, domain='prose', **LOOKUP)]
  found = run_report.headline_of(rows)
  begin = 'No verdict on small: 1 of its 2 rows cannot be believed. '
  assert found.verdict.startswith(begin)
  assert 'machine. lookup, gamma 4, ' in found.verdict
  assert run_report.headline_of(rows[:2]).places is None
  assert 'believed' in run_report.headline_of([wrong]).verdict
  whole = [cell(1.3, gamma=2), cell(1.3, gamma=2, domain='prose')]
  found = run_report.headline_of([*rows, *whole])
  assert found.verdict.startswith('small, gamma 2, ')


def test_the_verdict_comes_first_and_the_conditions_stand_once():
  seconds = {'whole': 2.0, 'blocked': 1.0}
  own = {'baseline': {'layout': 'blocked', 'seconds_per_step': seconds}}
  own |= {'v': 2.1, 'command': 'specjax run pair'}
  rows = [cell(0.8, **own), cell(0.7, drafter='large', draft='any', **own)]
  start = run_report.headline_of(rows).verdict
  for text in (run_report.summary(rows), run_report.brief(rows)):
    assert ' '.join(text.split()).startswith(start)
    assert 'specjax explain' in text
  source = page.render(rows, [])
  body = source[source.index('<h1>') :]
  assert (
    body.index('does not pay') < body.index('v &lt; 1.90') < body.index('<dl>')
  )
  where = 'On a machine: batch 1, 8 prompts of each domain, 8 new tokens each'
  for text in (run_report.summary(rows), source):
    text = ' '.join(text.split())
    assert text.count(where) == 1
    assert 'with blocked weights, the faster of two layouts.' in text


def test_many_tables_are_folded_and_not_printed():
  rows = [cell(drafter=f'd{i}') for i in range(40)]
  cells, where, _ = run_report.groups(rows)
  assert (cells.folded, where.folded) == (False, True)
  text = run_report.brief(rows)
  assert '| d39' not in text
  assert 'summary.md has more: All cells; What was accepted where' in text
  assert '| d39' in run_report.brief(rows[-1:])


@pytest.mark.parametrize(
  'name',
  ['draft', 'new_tokens', 'versions', 'device', 'prompts_hash', 'prompts_from',
   'acceptance_by_context', 'autocorrelation', 'tau_without_bonus', 'seed',
   'unit_seconds', 'unit_tokens', 'speedup_ci', 'tau_ci', 'alpha_ci',
   'timed', 'commit'],
)  # fmt: skip
def test_rows_without_an_optional_field_are_shown(name):
  rows = [cell(1.5), cell(1.2, drafter='large')]
  for row in rows:
    del row[name]
  assert '| small' in run_report.summary(rows)
  page.check(rows)


def test_what_is_shown_stands_above_the_legend():
  """And a row without an interval has no bar."""
  rows = [cell(), cell(drafter='large', speedup_ci=None, alpha_ci=None)]
  figure = plots.speedup_against_gamma(rows)
  one, other = figure.axes[0].containers
  assert (one.has_yerr, other.has_yerr) == (True, False)
  (legend,) = figure.legends
  title, conditions = legend.get_title().get_text().split('\n')
  assert title == plots.speedup_against_gamma.__doc__.split('\n')[0]
  assert conditions.startswith('On a machine: batch 1, 8 prompts')
  assert not figure.axes[0].get_legend()


def test_a_drafter_looks_alike_in_every_figure():
  rows = [cell(drafter=f'd{i}', domain=d) for d in 'xy' for i in range(10)]
  for row in rows:  # Two are missing, each in other figures.
    if row['drafter'] in ('d0', 'd1'):
      row[{'d0': 'acceptance_by_position', 'd1': 'c'}[row['drafter']]] = None
  rows.append(cell(drafter='d5', domain='x', verifier='block'))
  looks: dict = {}
  for make in (plots.speedup_against_gamma, plots.acceptance_by_position):
    for axes in make(rows).axes:
      bars = [(bar.get_label(), bar.lines[0]) for bar in axes.containers]
      for label, line in bars or [(x.get_label(), x) for x in axes.lines]:
        looks.setdefault(label, set()).add(
          (line.get_color(), line.get_marker())
        )
  assert all(len(found) == 1 for found in looks.values())
  assert len(set.union(*looks.values())) == len(looks) == 11
  assert looks['d5, token'] != looks['d5, block']


@pytest.mark.parametrize(
  ('changes', 'tau', 'speedup'),
  [
    ({}, '2.00 [1.90, 2.10]', '1.50 [1.40, 1.60]'),
    ({'tau_ci': None, 'speedup_ci': [None, None]}, '2.00', '1.50'),
    ({'tau': None, 'speedup': None}, '-', '-'),
  ],
)
def test_a_number_without_an_interval_stands_alone(changes, tau, speedup):
  row = made.row(speedup=1.5, speedup_ci=[1.4, 1.6]) | changes
  assert intervals.shown(row, 'tau') == tau
  assert intervals.shown(row, 'speedup') == speedup
  if not changes:
    assert intervals.meets(row, 'speedup', 1.55, 2)
    assert not intervals.meets(row, 'speedup', 1.65, 2)
    row['speedup_ci'] = [None, None]
    assert not intervals.meets(row, 'speedup', 1.55, 2)
