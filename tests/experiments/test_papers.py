"""Published tables: their files, their configs, and what is printed of ours."""

import pathlib

import pytest

from experiments.papers import published
from experiments.papers.published import Calculated, Metric, Published
from specjax.bench.config import Candidate
from tests.support import rows as made

CONFIGS = dict(published.configs())


def test_a_config_finds_its_rows_and_numbers():
  for x in CONFIGS.values():
    rows = published.rows_of(x)
    for row in rows:
      assert row['source'].startswith('arXiv:')
      assert row['read']
    known = {number for row in rows for number in row['metrics']}
    if isinstance(x, Calculated):
      assert set(x.formulas) <= known
      continue
    assert {metric.published for metric in x.compared} <= known
    settings = {setting for row in rows for setting in row['setting']}
    assert set(x.names) <= set(x.axes) <= settings
    # A renamed value is one that the table has, in this part or another.
    everywhere = published.read(x.paper)['rows']
    for setting, names in x.names.items():
      values = {str(r['setting'].get(setting)) for r in everywhere}
      assert names.keys() <= values
    assert bool(x.missing) != bool(x.needs)


def test_theory_gives_the_printed_numbers():
  calculated = [x for x in CONFIGS.values() if isinstance(x, Calculated)]
  assert len(calculated) == 3
  for x in calculated:
    for row in published.calculate(x):
      for number in x.formulas:
        assert published.agrees(x, row, number), row


def test_without_rows_nothing_is_claimed():
  lacking = set()
  for x in CONFIGS.values():
    if isinstance(x, Calculated):
      continue
    text = published.table_published(x, [])
    assert 'not run: ' in text
    if 'are of methods not in the project' in text:
      lacking.add(x.name)
    head, *lines = made.cells(text)
    places = [i for i, h in enumerate(head) if h == 'ours']
    assert len(places) == len(x.compared)
    assert {line[i] for line in lines for i in places} == {'-'}
  assert 'spec_bench_7b' in lacking
  assert 'leviathan_table2_wmt' not in lacking


def test_a_table_of_a_paper_is_chosen_behind_the_colon():
  load = published.get_config
  assert load('leviathan') == load('leviathan/table2/wmt')
  assert load('leviathan/table2/cnn') == load('leviathan/cnn')
  x = load('leviathan/table3')
  assert (x.name, x.paper) == ('leviathan_table3_wmt', 'leviathan')
  # Fields of a part are merged into those of its table.
  assert list(x.candidates) == ['unigram', 'bigram', 'small', 'base', 'large']
  assert x.candidates['small'] == Candidate('lm', 1, 'google/t5-v1_1-small')
  assert (x.prompts.dataset, x.prompts.count) == ('wmt/wmt14:de-en', 100)
  for wrong in ('table9', 'table3/xsum', 'table1/wmt'):
    with pytest.raises(ValueError, match=f'takes leviathan/.*{wrong}'):
      load(f'leviathan/{wrong}')


def test_the_page_of_papers_is_what_the_configs_give():
  assert pathlib.Path('results/papers.md').read_text() == published.page()


def _table():
  return Published(
    name='x',
    paper='leviathan',
    table='Tables 2 and 4',
    part={'dataset': 'WMT EnDe', 'draft': 'T5-small 77M'},
    axes={'draft': 'drafter', 'temperature': 'temperature', 'gamma': 'gamma'},
    names={'draft': {'T5-small 77M': 'small'}},
    compared=(Metric('alpha', 'alpha'), Metric('speed_empirical', 'speedup')),
    needs=('weights',),
  )


def test_our_numbers_stand_in_the_cells_of_the_paper():
  row = made.row(drafter='small', gamma=7, temperature=1, prompts=8)
  other = made.row(drafter='base', gamma=7, temperature=1, alpha=0.11)
  text = published.table_published(_table(), [row, other])
  cold, warm = (x for x in made.cells(text) if x[0] in ('0', '1'))
  assert cold == ['0', '0.75', '-', '3.4', '-']
  assert warm == ['1', '0.62', '0.50 [0.40, 0.60]', '2.6', '-']
  assert '0.11' not in text
  assert 'run: 2 cells' in text


def test_several_cells_are_pooled_from_their_prompts():
  rows = [
    made.row(domain='a', unit_tokens=[4] * 6, unit_target_calls=[2] * 6),
    made.row(domain='b', unit_tokens=[9] * 6, unit_target_calls=[1] * 6),
  ]
  shown = published.measured(rows, {'drafter': 'draft'}, Metric('t', 'tau'))
  assert shown.startswith(f'{78 / 18:.2f} [')


def test_a_number_is_ours_by_the_definition_of_the_paper():
  x = CONFIGS['configs/papers.py:spec_bench/7b']
  fields = {
    'drafter': 'sps', 'domain': 'qa', 'tau_per_step': 2.25,
    'tau_per_step_ci': [2.0, 2.5], 'speedup_of_rates': 1.5, 'speedup': 1.4,
  }  # fmt: skip
  one = made.row(**fields)
  text = published.table_published(x, [one])
  assert '2.25 [2.00, 2.50]' in text
  assert '1.50' in text
  assert '1.40' not in text
  assert 'Ours is tau_per_step where the paper has it: the mean of acc' in text
  # Steps of several domains are pooled, of prompts with 6 and 1 of them.
  units = ({'unit_accepted': [6, 1] * 3, 'unit_steps': [6, 1] * 3},
           {'unit_accepted': [0, 3] * 3, 'unit_steps': [2, 5] * 3})  # fmt: skip
  rows = [made.row(**fields | u) for u in units]
  assert f'{1 + 10 / 14:.2f} [' in published.table_published(x, rows)


def test_acceptance_at_a_place_is_pooled_from_histograms():
  """Of 12 steps that came to the second place 9 accepted it."""
  rows = [
    made.row(domain='a', unit_histogram=[[5, 1, 3]]),
    made.row(domain='b', unit_histogram=[[0, 2, 6]]),
  ]
  metric = Metric('alpha_1', 'unit_histogram', {'drafter': 'draft'}, place=1)
  found = published.measured(rows, metric.cell, metric)
  assert found == '0.75'  # Of two prompts: no interval.
  # Older rows do not say it.
  assert published.measured([made.row()], metric.cell, metric) == '-'


def test_unknown_papers_and_tables_are_named():
  with pytest.raises(ValueError, match="no 'nobody'; choose from block"):
    published.read('nobody')
  x = _table()
  x.table = 'Table 9'
  with pytest.raises(ValueError, match='its tables are Table 1, '):
    published.rows_of(x)


def test_the_cells_of_several_domains_are_taken_together():
  """As Spec-Bench has MT-Bench in one column; only where all were run."""
  sizes = {'writing': 6, 'coding': 8}
  rows = [
    made.row(
      domain=domain,
      prompts=count,
      speedup=1.0 + place,
      unit_tokens=[10 + i for i in range(count)],
      unit_target_calls=[5] * count,
      unit_baseline_tokens=[9] * count,
      unit_baseline_seconds=[3.0 + i % 2 for i in range(count)],
      unit_seconds=[2.0 + place] * count,
    )
    for place, (domain, count) in enumerate(sizes.items())
  ]
  metric = Metric('multi_turn_speedup', 'speedup')
  shown = published.measured(rows, {'domain': tuple(sizes)}, metric)
  plain = (6 * 3.5 + 8 * 3.5) / (14 * 9)
  ours = (6 * 2 + 8 * 3) / sum(10 + i for n in (6, 8) for i in range(n))
  assert shown.startswith(f'{plain / ours:.2f} [')
  assert published.measured(rows, {'domain': ('writing', 'qa')}, metric) == '-'
  assert published.measured(rows, {'domain': 'writing'}, metric) == '1.00'
  untimed = [row | {'unit_baseline_seconds': None} for row in rows]
  assert published.measured(untimed, {'domain': tuple(sizes)}, metric) == '-'
