"""The contest of trained drafters: sizes, costs, verdicts, and all of it."""

import dataclasses

import jax
import pytest

from experiments import contest as study
from specjax import reports
from specjax.bench.config import Checkpoint, Prompts
from specjax.drafters import lm
from specjax.errors import UserError
from specjax.training import train_heads
from specjax.training.recipes import HeldOut, Optimization, Texts
from tests.support import tiny
from tests.support.resumed import run_twice


def matrices(model) -> int:
  """Numbers that each token is multiplied with."""
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return sum(
    leaf.size
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)
    if leaf.ndim > 1 and path[-1].key != 'embedding'
  )


def test_work_is_that_of_the_matrices_and_of_the_caches():
  target, draft = tiny.model(32, 2), tiny.model(16, 1)
  plain = study.work_of(None, target, 0)['score']
  assert plain.weights == matrices(target)
  # Two heads ask one of keys and of values, of 16 entries, in two layers.
  assert plain.flops >= 2 * (plain.weights + plain.memory)
  assert plain.memory > 0
  sizes = {'width': 16, 'num_layers': 1, 'num_heads': 2, 'num_kv_heads': 1}
  sizes |= {'head_dim': 16, 'mlp_width': 64, 'max_positions': 128}
  head = lm.trainable(target, **sizes)
  drafted = study.work_of(head, target, 3)['propose']
  assert drafted.weights == 3 * matrices(draft)
  found = study.costs(head, target, 3)
  assert found['plain_flops'] == plain.flops
  assert found['drafted_flops'] == pytest.approx(drafted.flops / 3)
  # One row waits for weights, and many for products.
  one = found['calculated']['h100, batch 1']
  assert one['v'] == pytest.approx(1, abs=0.1)
  assert one['c'] == pytest.approx(matrices(draft) / plain.weights, rel=0.3)


def test_drafters_have_as_many_parameters_as_sizes_allow():
  target = tiny.model(128, 3)
  x = study.get_config()
  entries = {entry.name: entry for entry in study.enter(x, target)}
  assert {*entries} == {*study.KINDS}
  wanted = x.size * 128**2
  sizes = {name: entry.numbers / wanted for name, entry in entries.items()}
  assert sizes.pop('early_exit') == pytest.approx(2 / x.size, rel=0.1)
  assert sizes == {name: pytest.approx(1, rel=0.1) for name in sizes}


def row(kind: str, taus, c: float = 0.1) -> dict:
  """A row in which each prompt takes ten calls."""
  count = len(taus)
  return {
    'program': 'contest', 'kind': kind, 'drafter': f'{kind}-8',
    'target': 'target', 'domain': 'code', 'temperature': 0.0, 'gamma': 2,
    'learned': 1024, 'prompts': count, 'prompts_hash': 'same',
    'unit_tokens': [10.0 * tau for tau in taus],
    'unit_target_calls': [10.0] * count, 'tau': sum(taus) / count,
    'own_numbers': 2_000_000, 'drafted_flops': 1e6, 'plain_flops': 1e7,
    'calculated': {study.PLACE: {'v': 1.0, 'c': c}},
  }  # fmt: skip


def test_an_order_holds_fails_or_is_undecided():
  low = [row('a', [1.5, 1.7, 1.4, 1.6, 1.5])]
  high = [row('b', [2.0, 2.3, 1.9, 2.1, 2.2], c=0.5)]
  lead, outcome = study.order(low, high)
  assert outcome == 'holds'
  assert lead.value == pytest.approx(0.56)
  assert study.order(high, low)[1] == 'does not hold'
  apart = [row('c', [1.0, 2.4, 1.2, 2.0, 1.3])]
  assert study.order(low, apart)[1] == 'undecided'
  # Its tau is higher, and what it costs is more than that.
  lead, outcome = study.order(low, high, study.PLACE)
  assert outcome == 'does not hold'
  assert lead.value == pytest.approx(2.1 / 2 - 1.54 / 1.2)
  others = [row('b', [2.0] * 5) | {'prompts_hash': 'other'}]
  assert study.order(low, others) == (None, '-')


def test_prompts_are_read_before_anything_is_trained(tmp_path):
  file = tmp_path / 'few.jsonl'
  file.write_text('{"prompt": "a b c"}\n' * 3)
  heads = tmp_path / 'heads'
  x = dataclasses.replace(study.get_config(), heads=str(heads))
  x.prompts = Prompts(str(file), field='prompt', domains=('two',))
  with pytest.raises(UserError, match=r'^prompts\.domains must be some of few'):
    study.run(x)
  x.prompts.domains = ()
  with pytest.raises(UserError, match=r'^batch 16 is more than the 3 prompts'):
    study.run(x)
  assert not heads.exists()


@pytest.mark.slow
def test_a_contest_trains_once_and_compares(
  folder, tmp_path, capsys, monkeypatch
):
  trained, train = [], train_heads.main
  monkeypatch.setattr(
    train_heads, 'main', lambda recipe: trained.append(recipe) or train(recipe)
  )
  x = dataclasses.replace(
    study.get_config(), target=Checkpoint(str(folder / 'target')),
    kinds=('medusa', 'pard'), steps=(3, 6), size=2, gammas=(2,),
    optimization=Optimization(((1, 1e-2), (6, 0.0)), 4, 16),
    texts=Texts(count=8, batch=8, length=32, prompt_length=8),
    held_out=HeldOut(1, 16, 8, depth=2), temperatures=(0.0,), max_new_tokens=8,
    heads=str(tmp_path / 'heads'), results=str(tmp_path / 'rows'),
  )  # fmt: skip
  x.prompts.count, x.prompts.length, x.batch = 3, 16, 3
  tiny.write_data(tmp_path / 'heads/data')
  rows = run_twice(study, x, capsys)
  assert len(trained) == 4
  for kind in ('medusa', 'pard'):
    learned = [r['learned'] for r in rows if r['kind'] == kind]
    assert learned == 2 * [3 * 64, 6 * 64]
  assert rows[0]['training']['tokens'] == rows[0]['learned']
  assert 'eagle1 > lm' not in reports.summary(rows)
  with pytest.raises(UserError, match='another recipe'):
    study.run(dataclasses.replace(x, seed=1))
