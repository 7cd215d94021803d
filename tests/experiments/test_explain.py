"""Explaining a tiny pair: rows, phases, resume; costs; programs kept."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.bench import costs, measure, results
from specjax.bench.config import OnDevice
from specjax.drafters import ngram, plain
from specjax.loop import generate
from specjax.models import transformer
from specjax.models.config import Experts
from specjax.programs import explain
from specjax.reports import explain as explain_report
from specjax.stats import sanity_checks, theory
from specjax.types import Params, Spec
from tests.support import models, tiny


def settings(folder, **changes):
  common = {'drafters': ('ngram',), 'gammas': (2,), 'temperatures': (0.0,)}
  return OnDevice(**vars(tiny.experiment(folder, **common | changes)))


ROW = {
  'program': 'explain', 'drafter': 'ngram', 'verifier': 'token',
  'lossless': True, 'drafted': 8,
  'histogram': [4, 0], 'domain': 'code', 'temperature': 0.0, 'batch': 1,
  'prompts': 8, 'alpha': 0.5, 'tau': 1.6, 'tau_ci': [1.5, 1.7], 'c': 0.1,
  'v': 1.1, 'predicted_speedup_ci': [1.2, 1.5], 'speedup_ci': [1.2, 1.4],
  'measured_over_predicted': 1.0, 'measured_over_predicted_ci': [0.9, 1.1],
  'baseline_tokens_per_second': 500.0, 'seconds': 0.5, 'steps': 200,
  'asked_gamma': 2,
}  # fmt: skip
LOOPS = {
  'plain': [2e-3], 'whole': [2e-3], 'scored': [1e-3], 'judged': [6e-4],
  'committed': [5e-4], 'bare': [1e-4],
}  # fmt: skip
PHASES = {
  'program': 'explain', 'gamma': 2,
  'loops': dict.fromkeys(('plain', 'speculative'), LOOPS),
}  # fmt: skip


def test_a_report_of_what_the_folder_holds(tmp_path, capsys):
  """Two draft lengths, and phases of the better one."""
  folder = results.Folder(tmp_path / 'a', {})
  for gamma, value, measured in ((2, 1.34, 1.3), (1, 1.2, 1.36)):
    cell = {'gamma': gamma, 'predicted_speedup': value, 'speedup': measured}
    folder.add(ROW | cell | {'tau': value * (1.1 + 0.1 * gamma)})
  reads = {'tokens': 1200, 'plain': [46.2e6, 3e6], 'drafted': [2.9e6, 4e5]}
  folder.add(PHASES | {'reads': reads, 'experts': EXPERTS})
  last = explain.report(folder)
  # That of the prediction, whatever came out first.
  text = (folder.path / 'summary.md').read_text()
  assert last['best_gamma'] == 2
  said = ' '.join(text.split())
  assert last['verdict'].startswith('Best gamma: 2, 1.30 ')
  assert last['ratio_ci'] == [0.9, 1.1]
  assert last['experts'] == explain_report.mixture(folder.rows)
  assert (last['speedup'], last['predicted_speedup']) == (1.3, 1.34)
  assert len(json.dumps(last)) < 1000
  assert said.startswith(last['verdict'])
  assert capsys.readouterr().out.strip() == text.strip()
  table = [line for line in text.splitlines() if line.startswith('|')]
  lines = {line.split('|')[1].strip(): line for line in table}
  # Of 2.5 ms the phases explain 2, of which the draft takes one.
  assert '1.000 | 40.0%' in ' '.join(lines['draft'].split())
  assert lines['unexplained'].count('20.0%') == 1
  assert (
    'Behind 1,200 tokens a row reads 46.2 MB of weights and 3 MB of cache; for '
    'a drafted token 2.9 MB of weights and 0.4 MB of cache.'
  ) in said
  assert lines['2'].split()[-2] == '0.24'  # 1 + a + a^2 = 1.3
  assert (folder.path / 'speedup_against_gamma.png').stat().st_size > 5000


def test_batches_are_judged_by_what_their_rows_wait():
  """At batch 4 the best length is that of rows that wait for the last one."""
  cells = [
    ROW | {'gamma': 1, 'predicted_speedup': 1.3, 'speedup': 1.2},
    ROW | {'gamma': 4, 'predicted_speedup': 1.4, 'speedup': 0.9},
  ]
  static = {'measured_over_predicted_static': 1.0}
  for cell, value in zip(cells, (1.25, 0.95), strict=True):
    cell |= static | {'batch': 4, 'prompts': 32}
    cell['predicted_static_speedup'] = value
    cell['predicted_static_speedup_ci'] = [value - 0.125, value + 0.125]
  assert explain_report.choose(cells)['gamma'] == 1
  text = ' '.join(explain_report.summary(cells).split())
  assert 'Best gamma at batch 4: 1, ' in text
  assert '1.25 [1.12, 1.38]' in text
  alone = [cell | {'batch': 1} for cell in cells]
  assert explain_report.choose(alone)['gamma'] == 4


def test_what_cannot_be_is_explained_by_nobody(tmp_path, monkeypatch, capsys):
  """The best gamma is another one; without any there is no verdict."""
  folder = results.Folder(tmp_path / 'a', {})
  cell = {'predicted_speedup': 1.34, 'speedup': 1.3}
  bad = ROW | cell | {'gamma': 2, 'impossible': ['v is 0.46']}
  folder.add(bad)
  last = explain.report(folder)
  assert last['impossible'] == 1
  assert last['best_gamma'] is last['verdict'] is None
  good = ROW | {'gamma': 1, 'predicted_speedup': 1.2, 'speedup': 1.1}
  assert explain_report.possible([bad, good]) == [good]

  runner = types.SimpleNamespace(folder=folder, run=lambda: None)
  monkeypatch.setattr(explain, 'Explainer', lambda x, asked: runner)
  for name in ('narrow', 'plan', 'whole_steps'):
    monkeypatch.setattr(explain, name, lambda x: x)
  capsys.readouterr()
  explain.main(types.SimpleNamespace(quick=False, timed=True, device=''))
  out, said = capsys.readouterr()
  assert json.loads(out.splitlines()[-1]) == last
  assert 'warning: domain code, temperature 0.0, drafter ngram' in said
  assert 'gamma 2: v is 0.46' in said


def mixed(v, experts):
  """Rows of a run of a mixture at gamma 2, with phases."""
  reads = {'tokens': 90, 'plain': [4e6, 3e6], 'drafted': None}
  return [
    ROW | {'gamma': 2, 'v': v, 'predicted_speedup': 1.3, 'speedup': 1.3},
    PHASES | {'reads': reads, 'experts': experts},
  ]


EXPERTS = {
  'count': 16, 'chosen': 2, 'layers': 2, 'tokens': [1, 3], 'source': 'router',
  'touched': [[2.0, 2.0], [4.0, 5.0]], 'read': [2.0, 4.5],
  'bytes': [4_000_000, 9_000_000],
}  # fmt: skip


def test_experts_that_are_read_explain_a_high_v():
  rows = mixed(2.5, EXPERTS)
  by_layer = {'touched': [2.0, 4.5], 'by_layer': EXPERTS['touched']}
  why = {'bytes_ratio': 2.25, 'why': True}
  assert explain_report.mixture(rows) == EXPERTS | by_layer | why
  said = ' '.join(explain_report.summary(rows).split())
  assert (
    'Of 16 experts of a layer a token goes to 2: 1 of a plain step to 2, 3 of '
    'a speculative one to 4.5 (4 to 5 by layer), counted from the choices of '
    'the router over texts. A plain step reads 4 MB of weights, and scoring 9 '
    'MB, 2.25 times as many. That is why v is 2.50.'
  ) in said
  (scoring,) = (x for x in explain_report.decide(rows) if x.name == 'scoring')
  assert scoring.trouble == (
    '3 tokens cost v 2.50, as they read 4.5 of 16 experts, and a plain step 2'
  )
  assert 'fewer experts' in scoring.change


def test_neither_noise_nor_the_gamma_that_is_set_is_advice(tmp_path, capsys):
  """v and c cannot be, so less of them would make a step slower."""
  cell = {'gamma': 2, 'v': 0.9, 'c': -0.05, 'alpha': 1.0, 'tau': 3.0}
  loops = LOOPS | {'judged': [1e-6]}
  phases = dict.fromkeys(('plain', 'speculative'), loops)
  rows = [ROW | cell | {'predicted_speedup': 1.3, 'speedup': 1.3}]
  rows.append(PHASES | {'loops': phases, 'reads': None, 'experts': None})
  found = [one.name for one in explain_report.decide(rows)]
  assert not {'gamma', 'draft', 'scoring'} & {*found}
  assert explain_report.decide(rows[:1]) is None
  folder = results.Folder(tmp_path / 'a', {})
  for row in rows:
    folder.add(row)
  explain.report(folder)
  assert 'v 0.90 and c -0.05 can only be noise' in capsys.readouterr().out
  assert 'would help' in explain_report.sentence(rows[0], [])


@pytest.mark.parametrize(
  ('v', 'bytes_', 'why'),
  [
    (1.05, 9_000_000, False),  # v is not high
    (3.6, 9_000_000, False),  # 1.25 of 2.6
    (3.4, 9_000_000, True),
    (2.0, 4_400_000, False),
  ],
)
def test_experts_do_not_explain_any_v(v, bytes_, why):
  rows = mixed(v, EXPERTS | {'bytes': [4_000_000, bytes_], 'read': [2.0, 16.0]})
  assert explain_report.mixture(rows)['why'] is why
  text = explain_report.summary(rows)
  assert ('That is why v' in ' '.join(text.split())) is why
  assert 'So many tokens read all 16 here.' in ' '.join(text.split())
  assert explain_report.mixture(mixed(v, None)) is None


def test_experts_of_tokens_that_follow_each_other():
  row = [[0, 1], [1, 2], [0, 1], [3, 4]]
  other = [[5, 4], [5, 4], [5, 4], [5, 4]]
  chosen = np.array([[row], [other]])  # two layers
  assert explain.touched(chosen, 6, 1) == [2.0, 2.0]
  assert explain.touched(chosen, 6, 2) == [10 / 3, 2.0]
  both = np.array([[row, other]])  # of a batch
  assert explain.touched(both, 6, 1) == [15 / 4]


def test_experts_are_counted_on_texts(monkeypatch):
  """Behind prompts of different lengths; on a mesh by a formula."""
  target = models.tiny(11, 2, experts=Experts(8, 2, 12, dense=(0,)))
  params = models.weights(target, 0)
  prompts, texts = [[1, 2, 3], [4, 1, 3, 4]], [[5, 6, 7, 8, 1], [3, 9, 2, 2]]
  ended = types.SimpleNamespace(texts=texts)
  monkeypatch.setattr(measure, 'decode', lambda *_, **__: ended)
  job = types.SimpleNamespace(prompts=prompts)
  made = types.SimpleNamespace
  spec = made(drafter=made(nodes=1))
  method, base = made(way=made(spec=spec)), made(params=Params(params, None))

  def count(target):
    built = made(base=base, plain=made(target=target))
    return explain.count_experts(made(built=built), method, [job], 9)

  found = count(target)
  alone = [
    np.asarray(
      transformer.choose_experts(target, params, np.array([[*a, *b]]))
    )[:, 0, len(a) : len(a) + 4]
    for a, b in zip(prompts, texts, strict=True)
  ]
  expected = []
  for width in (1, 2):
    steps = range(4 - width + 1)
    seen = [{*np.ravel([x[0, t : t + width] for x in alone])} for t in steps]
    expected.append([np.mean([len(step) for step in seen])])
  assert found['touched'] == expected
  assert found['tokens'] == [2, 4]
  assert (found['count'], found['chosen'], found['layers']) == (8, 2, 1)
  assert found['source'] == 'router'
  assert found['read'] == [np.mean(x) for x in expected]
  (few,), (more,) = expected
  one = 4 * 3 * 8 * 12  # bytes of an expert
  added = found['bytes'][1] - found['bytes'][0]
  assert added == pytest.approx(one * (more - few), abs=2)
  even = count(target._replace(placement=object()))
  assert even['source'] == 'uniform'
  assert even['touched'] == [[8 * (1 - 0.75**n)] for n in (2, 4)]
  assert count(models.tiny(11, 2)) is None


# The verdict on made-up numbers.

GAMMAS = range(1, 9)


def facts(
  alpha=0.8, c=0.05, v=0.05, overhead=0.03, plain_overhead=0.02, gamma=None
) -> explain_report.Facts:
  """A draft whose tokens are accepted independently; v grows by row.

  Without a gamma the best one is asked for.
  """
  made = explain_report.Facts(
    gamma=gamma or 1,
    alpha=alpha,
    tau={g: theory.tokens_per_call(alpha, g) for g in GAMMAS},
    c=dict.fromkeys(GAMMAS, c),
    v={g: 1 + v * g for g in GAMMAS},
    overhead=overhead,
    plain_overhead=plain_overhead,
  )
  if gamma:
    return made
  return facts(
    alpha, c, v, overhead, plain_overhead, explain_report.best_gamma(made)
  )


@pytest.mark.parametrize(
  ('numbers', 'remedy', 'trouble'),
  [
    ({'c': 0.5, 'alpha': 0.7}, 'draft', 'c 0.500'),
    ({'c': 0.01, 'v': 0.01, 'alpha': 0.4}, 'agreement', 'alpha 0.40'),
    ({'c': 0.01, 'v': 0.6, 'alpha': 0.9}, 'scoring', 'cost v'),
    (
      {'v': 0.3, 'alpha': 0.6, 'overhead': 0.9, 'plain_overhead': 0.05},
      'overhead',
      '5% of',
    ),
    ({'alpha': 0.5, 'c': 0.15, 'gamma': 8}, 'gamma', 'gamma 8'),
    ({'alpha': 0.95, 'c': 0.01, 'gamma': 1}, 'gamma', 'gamma 1'),
  ],
)
def test_the_remedy_that_helps_most(numbers, remedy, trouble):
  first, *others = explain_report.remedies(facts(**numbers))
  assert first.name == remedy
  assert trouble in first.trouble
  assert first.gain > 1
  assert [first.gain >= other.gain for other in others] == [True] * 4


def test_gain_is_what_the_costs_promise():
  """alpha 1 at gamma 2: 3 tokens for 1.2 + 2 * 0.5 steps."""
  made = facts(alpha=1.0, c=0.5, v=0.1)
  for change, speedup in (
    ({}, 3 / 2.2),
    ({'drafting': 0.5}, 3 / 1.7),
    ({'scoring': 0.5}, 3 / (2.2 - 0.19 / 2)),  # 0.01 of 0.2 is not scoring.
    ({'overhead': 0.5}, 3 * 0.99 / 2.185),
  ):
    found = explain_report.predict(made, 2, **change)
    assert found == pytest.approx(speedup)
  half = facts(alpha=0.5, c=0.1, v=0.0), 1
  found = explain_report.predict(*half, disagreement=0.5)
  assert found == pytest.approx(1.75 / 1.1)


def cell(gamma, predicted, measured, **changes):
  row = {'gamma': gamma, 'domain': 'code', 'temperature': 0.0}
  return row | {'predicted_speedup': predicted, 'speedup': measured} | changes


def test_the_headline_is_greedy_code():
  rows = [
    cell(1, 1, 1, domain='structured'),
    cell(1, 1, 1, temperature=1.0),
    cell(1, 1, 1),
  ]
  assert explain_report.examined(rows) == rows[2:]
  assert explain_report.examined(rows[:1]) == rows[:1]


def test_phases_are_measured_anew_where_another_gamma_is_best():
  """More repetitions may change which one that is."""

  def settle():
    raise InterruptedError

  def start(gamma):
    rows = [cell(4, 1.6, 1.5), cell(1, 1.2, 1.9), {'loops': {}, 'gamma': gamma}]
    folder = types.SimpleNamespace(rows=rows)
    explain.add_phases(types.SimpleNamespace(folder=folder, settle=settle))

  start(4)
  with pytest.raises(InterruptedError):
    start(1)


def test_phases_add_up_to_a_step():
  loops = {
    'plain': [2e-3, 2e-3, 4e-3],
    'whole': [3e-3, 3.2e-3, 9e-3],
    'scored': [2e-3, 2.1e-3, 8e-3],
    'judged': [0.5e-3, 0.4e-3, 0.6e-3],
    'committed': [0.3e-3, 0.3e-3, 0.3e-3],
    'bare': [0.1e-3, 0.1e-3, 0.2e-3],
  }
  few = explain_report.split(loops, 4.0)
  assert all(p.interval is None for p in few.values())
  assert few['draft'].value == pytest.approx(2.2)
  assert few['loop'].value == pytest.approx(0.2)
  assert sum(p.value for p in few.values()) == pytest.approx(6.4)
  more = explain_report.split({k: 2 * v for k, v in loops.items()}, 4.0)
  assert more['draft'].low <= more['draft'].value <= more['draft'].high


@pytest.mark.slow
def test_a_tiny_pair_is_explained_once(folder, tmp_path, monkeypatch, capsys):
  """The last line has what was promised; a second start measures nothing."""
  # Times of so tiny a pair may be anything.
  monkeypatch.setattr(sanity_checks, 'find', lambda row: [])
  out = tmp_path / 'a'
  explain.main(settings(folder, results=str(out)))
  printed = capsys.readouterr().out
  *_, line = printed.splitlines()
  last = json.loads(line)
  row = json.loads((out / 'rows.jsonl').read_text().splitlines()[0])
  for name in ('c', 'v', 'tau', 'predicted_speedup', 'speedup'):
    assert last[name] == row[name]
  assert last['predicted_speedup'] == pytest.approx(
    row['tau'] / (row['v'] + 2 * row['c'])
  )
  assert (out / 'summary.md').read_text() in printed
  before = {p.name: p.read_text() for p in out.glob('*.json*')}
  explain.main(settings(folder, results=str(out)))
  assert capsys.readouterr().out.splitlines()[-1] == line
  assert {p.name: p.read_text() for p in out.glob('*.json*')} == before


def test_one_drafter_and_gammas_around_its_own(folder):
  x = tiny.experiment(folder, quick=False)
  assert explain.narrow(x) == 2
  assert x.drafters == ('draft',)
  assert x.gammas == tuple(range(1, 9))
  assert explain.narrow(settings(folder, gammas=(5, 7))) == 5


def test_a_replay_takes_the_steps_it_stands_for():
  """And nothing may be compiled while time is taken.

  Its keys are those of the prompts that the job names.
  """
  job = measure.Job(
    [[1, 2, 3, 1, 2], [4, 5, 4]], np.arange(2), sampling.make(2, 0.0),
    new_tokens=24, seed=0, slots=128,
  )  # fmt: skip
  target = models.tiny(11, 2)
  weights = models.weights(target, 0)
  base = measure.Decoding(
    Spec(target, plain.make(), verify.token), Params(weights, None)
  )
  with pytest.raises(RuntimeError, match='compiled inside the timed'):
    measure.decode(base, job)
  run = measure.decode(base, job)
  third = dataclasses.replace(job, indices=np.array([2, 5]))
  state = measure.start(base, third)
  keys = state.key, generate.row_keys(0, [2, 5])
  np.testing.assert_array_equal(*map(jax.random.key_data, keys))
  text = costs.known_text(job, run, target.config)
  spec = Spec(target, ngram.make(3), verify.token)
  replayed = costs.replay(measure.Decoding(spec, base.params), job)
  mean = 1.5
  pace = jax.numpy.float32([mean, 1, 3])
  params = Params(weights, (text, pace))
  found = measure.decode(measure.Decoding(replayed, params), job, timed=False)
  assert found.texts == run.texts
  # One accepted, two accepted, ...: 2 + 3 tokens a pair of steps, up to 24.
  np.testing.assert_array_equal(found.counts.target_calls, 10)
  whole = found.counts.histogram.sum(0)
  assert whole[[0, 3]].tolist() == [0, 0]
  assert whole[1] > 0 < whole[2]
  assert generate.slots_for(replayed, 1) == generate.slots_for(spec, 1)
