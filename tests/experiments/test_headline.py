"""The verdict on a run, from rows whose numbers can be checked by hand."""

import shlex

import pytest

from specjax.reports import break_even, plots, run_headline
from specjax.reports import page as report_page
from specjax.reports import run as run_report
from tests.support import rows as made


def cell(speedup=1.5, width=0.1, **changes):
  """A row with times: tau 2.2, and a step of 1.5 + 3 * 0.1 plain steps."""
  found = {
    'speedup': speedup,
    'speedup_ci': [speedup - width, speedup + width],
    'gamma': 3,
    'drafter': 'small',
    'draft': 'small',
    'c': 0.1,
    'v': 1.5,
    'tau': 2.2,
    'alpha': 0.6,
    'timed': True,
    'seed': 0,
    'target': 'big',
    'drafted': 30,
    'histogram': [4, 3, 2, 1],
    'predicted_speedup': 2.2 / 1.8,
    'tokens_per_second': 90.0,
    'baseline_tokens_per_second': 60.0,
  }
  return made.row(**(found | changes))


def said(*rows):
  return run_headline.headline(list(rows)).verdict


LOOKUP = {'drafter': 'lookup', 'draft': None, 'gamma': 4}


def test_what_wins_is_named_with_its_interval():
  assert said(cell(1.5)) == (
    'code, temperature 0: small at draft length 3 is 1.50 [1.40, 1.60] times '
    'plain decoding.'
  )
  assert said(cell(1.2, **LOOKUP), cell(1.5), cell(1.3, drafter='large')) == (
    'code, temperature 0: small at draft length 3, the best of 3, is 1.50 '
    '[1.40, 1.60] times plain decoding; without weights, lookup at draft '
    'length 4 reaches 1.20 [1.10, 1.30].'
  )
  assert said(cell(1.5, **LOOKUP), cell(1.2)).endswith(
    'lookup at draft length 4, the best of 2 and without weights of its own, '
    'is 1.50 [1.40, 1.60] times plain decoding.'
  )


def test_the_draft_and_the_rule_are_said_where_the_name_does_not():
  found = said(cell(draft='gpt'), cell(1.2, verifier='block'))
  assert 'small (draft gpt) with the rule token at draft length 3' in found


def test_parameters_decide_what_has_no_weights_where_rows_have_them():
  # A head beside the target has a draft of None and weights all the same.
  head = cell(1.4, drafter='head', draft=None, parameters=5)
  exits = cell(1.1, 0.05, drafter='exit', draft='its layers', parameters=0)
  assert 'without weights, exit (draft its layers)' in said(
    cell(parameters=9), head, exits
  )


@pytest.mark.parametrize('speedup', [0.95, 1.05])
def test_an_interval_with_1_in_it_is_undecided(speedup):
  found = run_headline.headline([cell(speedup)])
  assert found.verdict.startswith('code, temperature 0: undecided: small')
  assert 'and the interval includes 1' in found.verdict
  assert 'specjax explain' in found.command
  free = said(cell(1.5), cell(speedup, **LOOKUP))
  assert free.endswith(
    f'[{speedup - 0.1:.2f}, {speedup + 0.1:.2f}], undecided.'
  )


def test_a_sure_win_comes_before_a_larger_number_that_is_none():
  found = said(cell(1.4, 0.6, drafter='wide'), cell(1.3))
  assert 'small at draft length 3, the best of 2, is 1.30 [1.20, 1.40]' in found
  assert '(wide (draft small) at draft length 3, undecided, reaches 1.40' in (
    found
  )


@pytest.mark.parametrize(
  ('unknown', 'why'),
  [
    ({'prompts': 4}, ' with too few prompts for an interval'),
    ({'speedup_ci': None}, ', without an interval'),
  ],
)
def test_without_an_interval_nothing_wins(unknown, why):
  found = said(cell(3.0, **unknown))
  assert found == (
    'code, temperature 0: undecided: small at draft length 3 is 3.00 times '
    f'plain decoding{why}.'
  )
  found = said(cell(3.0, **unknown), cell(2.0, **unknown, **LOOKUP))
  assert found.count(why) == 1
  assert found.endswith('lookup at draft length 4 reaches 2.00.')
  found = said(cell(3.0, **unknown), cell(2.0, domain='prose', **unknown))
  assert found == (
    'Undecided: the best, small at draft length 3 on code, temperature 0, is '
    f'3.00 times plain decoding{why}.'
  )
  # Eight prompts in two batches were timed twice.
  assert 'too few prompts' in said(cell(3.0, batch=4))


def test_a_loss_has_its_reason_and_a_command():
  name = "a 'long' name"
  found = run_headline.headline([cell(0.8, v=2.5, drafter=name)])
  assert 'nothing pays: ' in found.verdict
  assert break_even.reason(cell(v=2.5)) in found.verdict
  assert shlex.split(found.command) == [
    *('python', '-m', 'experiments.explain', '--config', 'FILE'),
    f'--drafters={(name,)!r}',
  ]
  hostile = run_headline.headline([cell(0.8, drafter='`a` "$b"')]).command
  assert shlex.split(hostile)[-1] == '--drafters=(\'`a` "$b"\',)'
  usual = run_headline.headline([cell(0.8)]).command
  assert usual.endswith("""--drafters="('small',)\"""")
  assert run_headline.headline([cell()]).command == ''


@pytest.mark.parametrize(
  ('changes', 'cause', 'remedies'),
  [
    # tau 2.2 of 4 tokens: 1.8 are lost. Scoring loses 2, drafting 0.3.
    (
      {'v': 3.0},
      'scoring 4 tokens costs 3.00 plain steps (v): a step costs 3.30',
      ['v would have to be below 1.90', 'alpha would have to be above about'],
    ),
    # Scoring loses 0.2, drafting 2.1: (2.2 - 1.2) / 3 would break even.
    (
      {'v': 1.2, 'c': 0.7},
      'drafting a token costs 0.700 plain steps (c): a step costs 3.30',
      ['c would have to be below 0.333', 'alpha would have to be above about'],
    ),
    # Scoring loses 1.1, drafting 0.3.
    (
      {'v': 2.1},
      'too little of the draft is accepted (alpha 0.60): a step costs 2.40',
      ['alpha would have to be above about 0.66', 'v would have to be below '
       '1.90', 'c would have to be below 0.033'],
    ),
    # Equation 1 is of chains.
    (
      {'v': 2.1, 'drafted': 90},
      'too little of the draft is accepted (alpha 0.60): a step costs 2.40',
      ['tau would have to be above 2.40', 'v would have to be below 1.90'],
    ),
  ],
)  # fmt: skip
def test_the_reason_is_the_largest_loss(changes, cause, remedies):
  found = break_even.reason(cell(0.8, **changes))
  assert found.startswith(f'because {cause}')
  places = [found.index(remedy) for remedy in remedies]
  assert places == sorted(places)


def test_a_reason_that_the_costs_do_not_give_is_not_made_up():
  found = break_even.reason(cell(0.8, v=4.5, c=0.5))
  assert 'none of v (4.50), c (0.500) and alpha alone' in found
  found = break_even.reason(cell(0.8))
  assert 'although a step costs 1.80 plain steps and gives 2.20 tokens' in found
  assert 'were not measured' in break_even.reason(cell(0.8, c=None, v=None))


def test_lossy_rules_never_win():
  lossy = cell(3.0, verifier='typical', lossless=False)
  assert 'small with the rule token' not in said(lossy, cell(1.2))
  assert '1.20 [1.10, 1.30]' in said(lossy, cell(1.2))
  assert said(lossy).startswith('No verdict')


def test_what_cannot_be_believed_is_said_first_and_decides_nothing():
  wrong = cell(9.0, drafter='magic', impossible=['tau 9.00 is above 4.'])
  bug = cell(5.0, drafter='buggy', differences=[{'verdict': 'bug'}])
  tie = cell(1.4, drafter='tied', differences=[{'verdict': 'tie'}])
  rows = [wrong, bug, tie, cell(1.2)]
  found = run_headline.headline(rows)
  (warning,) = found.warnings
  assert warning.startswith('2 of 4 rows cannot be believed')
  assert 'tau 9.00 is above 4; buggy' in warning
  assert '1 of its texts at temperature 0 differ' in warning
  assert 'tied (draft small) at draft length 3, the best of 2' in found.verdict
  assert found.markdown().startswith('2 of 4 rows')
  assert run_report.best(rows)['drafter'] == 'tied'
  (table,) = run_report.cells(rows)
  names = [line[0] for line in table.lines]
  assert names == ['magic (!)', 'buggy (!)', 'tied', 'small']
  assert 'magic (!), token, gamma 3: tau 9.00 is above 4.' in table.note


def test_without_times_the_verdict_is_on_tau():
  old = dict.fromkeys(('speedup', 'speedup_ci', 'c', 'v'))
  assert said(cell() | old, cell(**LOOKUP, tau=1.5) | old) == (
    'code, temperature 0: small at draft length 3, the best of 2, gives 2.20 '
    '[1.90, 2.10] tokens per target call; without weights, lookup at draft '
    'length 4 reaches 1.50 [1.90, 2.10]; no time was taken, so nothing is said '
    'about speed.'
  )
  assert 'gives 2.20 to 3.00 tokens' in said(
    cell() | old, cell(domain='prose', tau=3.0) | old
  )


def test_several_places_are_counted_and_told():
  prose, warm = {'domain': 'prose'}, {'temperature': 1.0}
  found = run_headline.headline(
    [cell(1.5), cell(1.05, **prose), cell(0.7, **warm)]
  )
  assert found.verdict == (
    'Speculation pays in 1 of 3 domains and temperatures, is undecided in 1, '
    'loses in 1; where it pays, the best is 1.50 times plain decoding.'
  )
  assert [said.partition(':')[0] for said in found.places] == [
    'code, temperature 0',
    'prose, temperature 0',
    'code, temperature 1',
  ]
  lost = said(cell(0.7, v=3.0), cell(0.8, v=3.0, **prose))
  assert lost.startswith(
    'Nothing here pays: the best, small at draft length 3 on prose, '
    'temperature 0, is 0.80 [0.70, 0.90] times plain decoding, because '
    'scoring 4 tokens'
  )
  assert said(cell(1.0), cell(0.7, **prose)).startswith('Undecided: in none')


def test_the_verdict_comes_first_in_every_place():
  rows = [cell(0.8, v=2.1)]
  start = run_headline.headline(rows).verdict
  for text in (run_report.summary(rows), run_report.brief(rows)):
    assert ' '.join(text.split()).startswith(start)
    assert 'specjax explain' in text
  page = report_page.render(rows, [])
  body = page[page.index('<h1>') :]
  assert body.index('nothing pays') < body.index('<dl>') < body.index('<table>')


def test_every_group_of_tables_has_its_conditions():
  rows = [cell(1.5), cell(1.2, drafter='large', draft='a checkpoint')]
  for row in rows:
    row['baseline'] = {
      'layout': 'blocked',
      'seconds_per_step': {'whole': 2.0, 'blocked': 1.0},
    }
  text = run_report.summary(rows)
  where = 'On a machine: batch 1, 8 prompts of each domain, 8 new tokens each'
  for group in run_report.groups(rows):
    part = ' '.join(text.partition(f'## {group.name}\n')[2].split())
    assert part.startswith(where)
    assert 'with blocked weights, the faster of two layouts. ###' in part
  assert report_page.render(rows, []).count(where) >= len(
    run_report.groups(rows)
  )


def test_columns_of_a_cell():
  (table,) = run_report.cells([cell(draft='a checkpoint')])
  assert dict(zip(table.head, table.lines[0], strict=True)) == {
    'drafter': 'small',
    'draft': 'a checkpoint',
    'rule': 'token',
    'gamma': '3',
    'speed-up': '1.50 [1.40, 1.60]',
    'predicted': '1.22',
    'tau': '2.20 [1.90, 2.10]',
    'alpha': '0.60 [0.40, 0.60]',
    'c': '0.100',
    'v': '1.50',
    'tokens/s': '90',
  }
  (table,) = run_report.positions([cell()])
  assert table.lines[0][-2:] == ['1.00', '0.50 0.25']


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
  report_page.check(rows)


def test_a_row_without_an_interval_has_no_bar():
  rows = [cell(), cell(drafter='large', speedup_ci=None, alpha_ci=None)]
  for make in (plots.predicted_against_measured, plots.alpha_by_domain):
    one, other = make(rows).axes[0].containers
    assert (one.has_yerr, other.has_yerr) == (True, False)


def test_a_drafter_looks_alike_in_every_figure():
  rows = [cell(drafter=f'd{i}', domain=d) for d in 'xy' for i in range(20)]
  for row in rows:  # Two are missing, each in other figures.
    missing = {'d0': 'predicted_speedup', 'd1': 'c'}.get(row['drafter'])
    row.update({missing: None} if missing else {})
  rows.append(cell(drafter='d5', domain='x', verifier='block'))
  looks: dict = {}
  for make in (
    plots.predicted_against_measured,
    plots.speedup_against_gamma,
    plots.tau_against_cost,
  ):
    for axes in make(rows).axes:
      for bar in axes.containers:
        line = bar.lines[0]
        looks.setdefault(bar.get_label(), set()).add(
          (line.get_color(), line.get_marker())
        )
  assert all(len(found) == 1 for found in looks.values())
  assert len(set.union(*looks.values())) == len(looks) == 21
  assert looks['d5, token'] != looks['d5, block']


def test_what_is_shown_stands_above_the_legend():
  (legend,) = plots.speedup_against_gamma([cell()]).legends
  title, conditions = legend.get_title().get_text().split('\n')
  assert title == plots.speedup_against_gamma.__doc__.split('\n')[0]
  assert conditions.startswith('On a machine: batch 1, 8 prompts')
  assert not plots.speedup_against_gamma([cell()]).axes[0].get_legend()
