"""What a step costs: rows and fits, from made-up times; and the real loop."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from experiments import other_vocabularies, peers, step_costs, step_timing
from specjax import native, verify
from specjax.bench.config import SamplingValues
from specjax.errors import UserError
from specjax.models import layouts
from specjax.training.train_pair import model_of
from tests.support.resumed import run_twice

RATE = 0.8


def quick(**changes):
  x = step_costs.get_config('decoding')
  x.shrink()
  return dataclasses.replace(x, **changes)


def test_the_parts_of_the_config_are_fit_to_run():
  with pytest.raises(UserError, match='the parts are all') as error:
    step_costs.get_config('x')
  parts = str(error.value).partition('are ')[2].partition(', got')[0]
  for part in parts.split(', '):
    x = step_costs.get_config(part)
    if x.accelerator:  # Real sizes need an accelerator.
      with pytest.raises(UserError, match='jax sees no GPU or TPU'):
        x.check()
      x.shrink()
    assert len(x.check()) == len(x.sweeps)


class Costs(step_timing.Bench):
  """A bench whose steps take what a formula says."""

  def loop(self, gamma=0, *, drafts=False, rule=verify.token, **options):
    del rule  # Unused.
    cost = options.get('used', 1) ** 0.5 * options.get('batch', 1)
    cost *= 1 + 0.25 * gamma + (0.5 * gamma if drafts else 0)
    timed = step_timing.Timed(cost, 1.0 + drafts)
    return types.SimpleNamespace(run=lambda: timed)


@pytest.fixture
def bench():
  return Costs(quick(gammas=(1, 3), rates=(RATE,)))


def test_gamma_is_split_into_the_targets_part_and_the_drafts(bench):
  one, three = step_costs.gamma(bench)
  assert (one['size'], three['size']) == (1, 3)
  np.testing.assert_allclose([one['v'], three['v']], [1.25, 1.75])
  np.testing.assert_allclose([one['c'], three['c']], 0.5)
  np.testing.assert_allclose(three['step_ms'], 3250)
  # scoring_ms against gamma + 1
  expected = np.log(1.75 / 1.25) / np.log(4 / 2)
  np.testing.assert_allclose(one['exponent'], expected)
  assert one['exponent_ci'] is None


@pytest.mark.parametrize(
  ('sweep', 'power'), [(step_costs.context, 0.5), (step_costs.batch, 1)]
)
def test_exponents_are_those_of_the_costs(bench, sweep, power):
  rows = sweep(bench)
  np.testing.assert_allclose([r['exponent'] for r in rows], power)


def test_scoring_is_compared_with_plain_steps_of_as_many_rows(bench):
  rows = step_costs.scoring(bench)
  assert [(r['batch'], r['size']) for r in rows] == [
    *((1, 1), (1, 3), (2, 1), (2, 3))
  ]
  np.testing.assert_allclose([r['v'] for r in rows], [1.25, 1.75] * 2)
  np.testing.assert_allclose(
    [r['plain_ms'] for r in rows], [1e3] * 2 + [2e3] * 2
  )


def test_the_other_side_decodes_on_the_same_device(monkeypatch):
  def torch(available):
    cuda = types.SimpleNamespace(is_available=lambda: available)
    return types.SimpleNamespace(cuda=cuda)

  assert peers.device(torch(True)) == 'cpu'  # As jax does here.
  monkeypatch.setattr(jax, 'default_backend', lambda: 'gpu')
  assert peers.device(torch(True)) == 'cuda'
  with pytest.raises(UserError, match='install torch with CUDA, or set JAX_PL'):
    peers.device(torch(False))


def test_simulated_speedup_beside_the_predicted_one(bench):
  (row,) = step_costs.simulated(bench)  # gamma 1 tells nothing of the draft
  assert (row['size'], row['gamma']) == (RATE, 3)
  # Two tokens a step, which costs 3.25 plain steps.
  np.testing.assert_allclose(row['speedup'], 2 / 3.25)
  tau = 1 + RATE + RATE**2 + RATE**3
  np.testing.assert_allclose(row['tau_expected'], tau)
  np.testing.assert_allclose(row['predicted_speedup'], tau / (1.75 + 3 * 0.5))


def test_passes_in_every_layout_over_the_fastest_of_one_token(monkeypatch):
  """Whole weights take 2 s a token, the kernel 3 s and a third for each."""
  x = step_costs.get_config('layouts')
  x.shrink()

  def clock(form, buffer, tokens):
    assert (buffer.batch, buffer.used) == (1, x.used)
    kernel = form.model.config.native
    return lambda passes: 3.0 + tokens / 3 if kernel else 2.0 * tokens

  monkeypatch.setattr(layouts, 'clock', clock)
  rows = step_costs.layout(step_timing.Bench(x))
  assert len(rows) == 7 * (1 + native.available())
  rows = {(r['way'], r['size']): r for r in rows}
  assert rows['whole', 8]['step_ms'] == 16e3
  assert rows['whole', 1]['v'] == 1.0
  said = step_costs.summary([row | {'device': 'a'} for row in rows.values()])
  assert '| a  | 1.00 (whole) |' in said
  if native.available():
    np.testing.assert_allclose(rows['native', 4]['v'], (3 + 4 / 3) / 2)
    assert '2.17 (native)' in said


@pytest.mark.slow
def test_a_draft_step_in_its_own_tokens_over_that_in_the_targets(monkeypatch):
  """Made-up times of real steps: the pieces of a token are fed, too."""
  x = quick(vocabularies=(256,), batches=(2,), gamma=3, used=20, steps=2)
  bench = step_timing.Bench(x)
  kinds = other_vocabularies.ways(bench, 256, 2)
  for (kind, texts), way in kinds.items():
    ends = 0 * way.ctx.tokens if kind == 'same' else way.memory.state.ends
    one_each = (np.diff(np.asarray(ends)[:, :20]) <= 1).all()
    assert one_each == (texts == 'shared')
    assert way().tokens == 3  # Two of three accepted.
  clock = {('same', 'shared'): 2.0, ('half', 'spelled'): 3.0}

  def take_turns(ways, repeats):
    del repeats  # Unused.
    timed = (step_timing.Timed(clock.get(name, 2.5), 3) for name in ways)
    return {name: [one, one] for name, one in zip(ways, timed, strict=True)}

  monkeypatch.setattr(other_vocabularies, 'take_turns', take_turns)
  monkeypatch.setattr(other_vocabularies, 'ways', lambda *_: kinds)
  rows = other_vocabularies.draft_step(bench)
  ratios = {(r['way'], r['texts']): r['ratio'] for r in rows}
  assert ratios['same', 'shared'] == 1
  assert ratios['half', 'spelled'] == 1.5
  assert len(ratios) == 5
  draft = {'draft': vars(x.draft), 'target': vars(x.target)}
  said = step_costs.headline([r | draft for r in rows])
  assert 'random weights, 1 layer x 32' in ' '.join(said.split())


def test_a_fit_has_an_interval():
  sizes = np.array([1, 2, 4, 8.0])
  found = step_costs.fit(sizes, 3 * sizes**0.7 * [1.1, 1, 1, 1.1])
  low, high = found['exponent_ci']
  assert low < 0.7 < high
  assert 0.05 < high - low < 0.5


@pytest.mark.slow
def test_the_study_runs_for_an_accelerator(tmp_path, capsys):
  """Toy sizes on this device, in bfloat16; and again: nothing is left."""
  x = step_costs.get_config('decoding')
  x.sweeps, x.quick, x.results = ('simulated',), True, str(tmp_path / 'results')
  x.shrink()
  x.rates = (0.5,)  # Programs are what this test costs.
  (row,) = run_twice(step_costs, x, capsys)
  assert (row['sweep'], row['gamma']) == ('simulated', 2)
  assert row['by'] == 'experiments.step_costs.simulated'
  assert row['dtype'] == 'bfloat16'
  assert 1 <= row['tau'] <= 3
  for name in ('v', 'speedup', 'predicted_speedup', 'plain_ms'):
    assert row[name] > 0
  assert {'versions', 'device', 'commit', 'load_before'} <= row.keys()


def test_the_limit_is_the_bytes_over_the_bandwidth(bench, monkeypatch):
  """Steps of 2 s, and readers of 3 and 5 bytes a second."""
  step = types.SimpleNamespace(run=lambda: step_timing.Timed(2.0, 1.0))
  read = types.SimpleNamespace(read=lambda: np.array([3.0, 5.0]))
  monkeypatch.setattr(step_costs, 'Loop', lambda *_, **options: step)
  monkeypatch.setattr(step_costs, 'Reader', lambda *_: read)
  rows = step_costs.limit(bench)
  assert [row['size'] for row in rows] == [128, 256]
  row, _ = rows
  # Keys and values of one head of 8 entries, 20 tokens in use, 2 bytes.
  assert row['cache_bytes_in_use'] == 2 * 8 * 20 * 2
  table = 256 * 32  # of which one row is read
  assert row['weight_bytes'] == 2 * (row['parameters'] - table)
  least = (row['weight_bytes'] + row['cache_bytes_in_use']) / 5
  np.testing.assert_allclose(row['limit_ratio'], 2 / least)
  model = model_of(bench.x.target, 256, 1024)
  spec = types.SimpleNamespace(drafter=step_timing.idle(4, 256), target=model)
  with pytest.raises(ValueError, match='125 tokens in use leave no room'):
    step_timing.Loop(spec, None, used=125, slots=128, steps=4)


def test_stages_are_all_there_are():
  """A stage that is added to the pipeline is measured too."""
  known = {f.name for f in dataclasses.fields(SamplingValues)}
  known -= {'logit_bias', 'forbidden', 'min_new_tokens'}  # one pass each
  known -= {'regex', 'json_schema'}  # a stage of its own
  assert set(step_costs.STAGES['all']) - {'temperature'} == known
  assert any('eos' in stages for stages in step_costs.STAGES.values())


def test_memory_is_read_by_every_program_that_there_is():
  """The kernel's has all cores, where XLA may have one."""
  reader = step_timing.Reader(1 << 22)
  rates = reader.read()
  assert len(rates) == 3 + native.available()
  assert (rates > 0).all()
  if native.available():
    made = reader.programs[-1](reader.x, reader.vector)
    assert (np.asarray(made) == 512).all()
    assert made.size * 512 == reader.x.size
