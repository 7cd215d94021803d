"""Several batch sizes in one run: its rows, its report, its refusals."""

import json

import numpy as np
import pytest

from specjax.bench import methods, results
from specjax.bench.config import Experiment, Prompts
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.programs import run as program
from specjax.reports import batches, page, plots
from specjax.reports import run as run_report
from specjax.stats import sanity_checks
from tests.support import rows as made
from tests.support import scripted_run, tiny
from tests.support.measuring_checks import wrong_fields

# Speed-up by batch; intervals reach 0.1 to either side.
SPEEDS = {
  2: {1: 1.3, 2: 1.25, 4: 1.15, 8: 0.8},
  1: {1: 1.2, 2: 1.18, 4: 1.05, 8: 0.88},
}


def row(batch: int, gamma: int, speedup: float, **changes) -> dict:
  """A row of 40 prompts: v grows with the batch, c is 0.1."""
  v = 1 + 0.2 * gamma * np.log2(2 * batch)
  found = made.row(
    batch=batch, gamma=gamma, prompts=40, timed=True, tau=1.9, v=float(v),
    c=0.1, speedup=speedup, speedup_ci=[speedup - 0.1, speedup + 0.1],
    predicted_speedup=1.9 / float(v + gamma * 0.1),
    predicted_static_speedup=0.8 * 1.9 / float(v + gamma * 0.1),
    predicted_static_speedup_ci=None, measured_over_predicted_static=1.0,
    measured_over_predicted_static_ci=[0.9, 1.1], at_work=0.8,
    baseline_at_work=1.0, tokens_per_second=100.0 * batch * speedup,
    baseline_tokens_per_second=100.0 * batch,
    row_seconds_per_token=0.01 / speedup,
    row_seconds_per_token_ci=[0.009 / speedup, 0.011 / speedup],
    baseline_row_seconds_per_token=0.01, baseline_row_seconds_per_token_ci=None,
    baseline={'layout': 'whole', 'seconds_per_step': None}, impossible=[],
    drafted=80, histogram=[10, 20, 10], identical_to_plain=40, target='big',
    seed=0,
  )  # fmt: skip
  return found | changes


def measured(row: dict) -> dict:
  """A row with the times of its prompts, which vary."""
  units = row['prompts'] // row['batch']
  seconds = np.linspace(0.9, 1.1, units)
  faster = row['speedup'] * (1 + 0.02 * (-1.0) ** np.arange(units))
  return row | {
    'unit_tokens': [10] * row['prompts'],
    'unit_target_calls': [5] * row['prompts'],
    'unit_baseline_tokens': [10] * row['prompts'],
    'unit_baseline_seconds': seconds.tolist(),
    'unit_seconds': (seconds / faster).tolist(),
  }


def run(**changes) -> list[dict]:
  return [
    row(batch, gamma, speedup, **changes)
    for gamma, by_batch in SPEEDS.items()
    for batch, speedup in by_batch.items()
  ]


def test_every_field_of_both_rows_is_known():
  """One run of two batch sizes gives the rows that two runs give."""
  machine = scripted_run.Machine()
  rows = scripted_run.run((1, 2), True, scripted_run.PROMPTS, machine)
  assert [r['batch'] for r in rows] == [1, 2]
  assert machine.strays == 0
  for found in rows:
    assert wrong_fields(found, found['batch']) == set()


def test_the_best_length_of_each_batch_and_where_it_ends():
  rows = run()
  assert [r['gamma'] for r in batches.best(rows)] == [2, 2, 2, 1]
  assert batches.paying(rows) == [1, 2, 4]
  assert batches.up_to(rows) == 4
  (table,) = batches.of_places([*rows, *run(domain='prose')])
  assert [line[0] for line in table.lines] == ['code', 'prose']
  assert table.lines[0] == [
    *('code', '0', '4', '1, 2, 4', '5.7 [4.5, 7.6], between 4 and 8'),
    '8.0, between 4 and 8',
  ]


def test_break_even_lies_between_two_batches():
  """On logarithms: halfway from 4 to 8 where 2 falls to a half."""
  found = batches.find([(2, 4.0, None), (4, 2.0, None), (8, 0.5, None)])
  assert found.value == pytest.approx(4 * 2**0.5)
  assert (found.ends, found.between, found.last) == (None, (4, 8), 8)
  assert found.text() == '5.7, between 4 and 8'
  ends = [(1, 2.0, [1.5, 3.0]), (2, 1.5, [0.9, 2.0]), (4, 0.5, [0.4, 1.2])]
  found = batches.find(ends)
  # The lower curve falls to 1 before batch 2, the upper one never does.
  low = 2 ** (np.log(1.5) / np.log(1.5 / 0.9))
  assert found.ends == (pytest.approx(low), np.inf)
  assert '[1.7, beyond 4], between 2 and 4' in found.text()
  assert batches.find([(1, 1.2, None), (2, 1.1, None)]).text() == ('beyond 2')
  none = batches.find([(1, 0.9, [0.8, 0.95]), (2, 0.8, [0.7, 0.9])])
  assert none.text() == 'at none'
  # It rises: the upper curve reaches 1 first.
  found = batches.find([(1, 0.5, [0.4, 0.6]), (2, 2.0, [1.5, 2.5])])
  assert found.value == pytest.approx(2**0.5)
  assert found.ends[0] < found.value < found.ends[1] < 2


@pytest.mark.parametrize(
  ('speeds', 'up_to', 'paying'),
  [
    ((1.3, 1.4, 1.3), '4', '1, 2, 4'),
    ((0.8, 0.7, 0.7), '-', ''),
    ((1.05, 0.7, 0.7), '-', ''),
    ((0.7, 1.4, 0.7), '-', '2'),
    ((1.3, 1.0, 1.3), '1', '1, 4'),
  ],
)
def test_what_pays_follows_from_the_intervals(speeds, up_to, paying):
  rows = [row(2**i, 2, speed) for i, speed in enumerate(speeds)]
  own = batches.pooled(rows)
  assert str(batches.up_to(own) or '-') == up_to
  assert ', '.join(map(str, batches.paying(own))) == paying
  text = batches.verdict(own, '')
  assert ('does not pay' in text) == (max(speeds) < 0.9)
  assert f'plain decoding: {speeds[0]:.2f} [' in text
  few = batches.pooled([r | {'speedup_ci': None} for r in rows])
  assert 'no interval, and so no verdict' in batches.verdict(few, '')
  assert '[' not in batches.verdict(few, '')


def test_the_headline_is_on_batches_where_there_are_several():
  rows = [measured(r) for d in ('code', 'prose') for r in run(domain=d)]
  # Another drafter that is faster takes no word of the verdict.
  rows += [r | {'drafter': 'other', 'speedup': 9.0} for r in rows]
  found = run_report.headline_of(rows)
  begin = 'draft pays up to batch 4 of 1 to 8 over 2 domains. In times plain '
  assert found.verdict.startswith(begin)
  assert 'other' not in found.verdict
  for row in found.pooled:
    low, high = row['speedup_ci']
    assert low < SPEEDS[row['gamma']][row['batch']] < high
  assert [row['batch'] for row in found.pooled] == [1, 2, 4, 8]
  assert len(found.places.lines) == 4
  assert found.slow
  single = [r for r in run() if r['batch'] == 1]
  assert 'speculation' in run_report.headline_of(single).places.head
  untimed = [made.row(batch=batch, prompts=8) for batch in (1, 2)]
  assert 'tau' in run_report.headline_of(untimed).places.head


def test_many_small_categories_have_one_number_with_its_interval():
  rows = [
    measured(row(1, 2, 1.3, domain=f'category {i}', prompts=2, temperature=t))
    | {'speedup_ci': None}
    for i in range(13)
    for t in (0.0, 1.0)
  ]
  found = run_report.headline_of(rows)
  assert 'over 13 domains and 2 temperatures' in found.verdict
  (pooled,) = found.pooled
  low, high = pooled['speedup_ci']
  assert low < 1.3 < high
  assert run_report.best(rows) is None  # No cell has an interval.
  # Nor is a draft the best that accepts nothing.
  nothing = row(1, 2, 1.4, tau=1.004)
  assert run_report.best([nothing]) is None
  assert run_report.best([nothing, row(1, 1, 1.2)])['gamma'] == 1


def test_a_brief_summary_and_the_page_have_the_tables_by_batch():
  brief = run_report.brief(run())
  assert '### By batch: code, temperature 0' in brief
  assert 'Batch 2' not in brief
  source = page.render(run(), [])
  assert 'in batches of 1 to 8' in source
  assert 'Best draft length by batch' in source


def test_the_figure_has_a_line_and_a_band_for_each_length():
  figure = plots.speedup_by_batch(run())
  (axes,) = figure.axes
  drawn = [line.get_xydata().tolist() for line in axes.lines]
  for gamma, by_batch in SPEEDS.items():
    assert [[b, s] for b, s in by_batch.items()] in drawn, gamma
  assert len(axes.collections) == 2
  (path,) = axes.collections[0].get_paths()
  assert [1.0, pytest.approx(1.2)] in path.vertices.tolist()
  assert axes.get_xscale() == 'log'
  labels = [x.get_text() for x in figure.legends[0].get_texts()]
  assert labels == ['draft, gamma 2', 'draft, gamma 1']
  untimed = plots.speedup_by_batch([made.row(), made.row(batch=2)])
  assert 'Nothing is left to show' in untimed.get_supxlabel()


def test_the_last_line_says_what_pays_where(tmp_path):
  folder = results.Folder(tmp_path / 'a', {})
  for one in run():
    folder.add(one)
  line = json.loads(json.dumps(program.last_line(folder)))
  (found,) = line['batches']
  assert (found['domain'], found['temperature']) == ('code', 0.0)
  assert found['pays_up_to'] == 4
  assert found['break_even'] == pytest.approx(5.75, abs=0.01)
  assert found['break_even_ci'] == pytest.approx([4.48, 7.55], abs=0.01)
  assert found['break_even_between'] == [4, 8]
  assert found['best'][-1] == {
    'batch': 8, 'drafter': 'draft', 'gamma': 1, 'speedup': 0.88,
    'speedup_ci': [0.78, 0.98],
  }  # fmt: skip
  assert line['best']['batch'] == 1
  few = batches.last_line([r | {'speedup_ci': None} for r in run()])
  assert [one['best'] for one in few] == [[]]
  assert [one['batch'] for one in line['pooled']] == [1, 2, 4, 8]
  single = results.Folder(tmp_path / 'b', {})
  single.add(row(1, 1, 1.2))
  assert 'batches' not in program.last_line(single)


# Settings, plan and runner.


def test_the_plan_has_every_batch_once_the_largest_first_in_work(folder):
  planned = plan(tiny.experiment(folder, batches=(2, 1, 2)), sweeps=True)
  assert (planned.batches, planned.batch) == ((1, 2), 2)
  planned = plan(tiny.experiment(folder, batch=2))
  assert (planned.batches, planned.batch) == ((2,), 2)


def test_the_quick_version_keeps_two_batches_and_their_prompts():
  def shrunk(**fields):
    x = Experiment('a', None, dict.fromkeys('abc'), **fields)
    x.prompts = Prompts(count=40)
    x.shrink()
    return x

  x = shrunk(batches=(1, 4, 8), gammas=(1, 2, 3))
  assert (x.batches, x.gammas, x.prompts.count) == ((1, 4), (1, 2), 4)
  assert (x.drafters, x.max_new_tokens) == (('a', 'b'), 32)
  assert shrunk(drafters=('c',), max_new_tokens=8).drafters == ('c',)
  assert shrunk(max_new_tokens=8).max_new_tokens == 8
  counts = [shrunk(batch=batch).prompts.count for batch in (1, 4, 64)]
  assert counts == [2, 4, 40]


@pytest.mark.slow
def test_a_run_makes_every_batch_and_goes_on(folder, tmp_path, monkeypatch):
  monkeypatch.setattr(methods, 'Race', tiny.NoRace)
  monkeypatch.setattr(sanity_checks, 'find', lambda row: [])
  x = tiny.experiment(
    folder,
    drafters=('ngram',),
    batches=(1, 2),
    temperatures=(1.0,),
    results=str(tmp_path / 'a'),
  )
  runner = Runner(plan(x, sweeps=True))
  assert not runner.complete()
  runner.run()
  one, two = runner.folder.rows
  assert [one['batch'], two['batch']] == [1, 2]
  assert runner.plan.batch == 1  # Texts are shown of the first batch.
  # The same prompts with the same keys: the same texts in any batch.
  for name in ('tokens', 'unit_target_calls', 'alpha', 'prompts_hash'):
    assert one[name] == two[name]
  assert runner.complete()
  kept = (tmp_path / 'a' / 'rows.jsonl').read_text()
  # A row that is lost is made again, and no other.
  (tmp_path / 'a' / 'rows.jsonl').write_text(kept.splitlines()[0] + '\n')
  again = Runner(plan(x, sweeps=True))
  assert [again.left(batch) for batch in (1, 2)] == [[], [('code', 1.0)]]
