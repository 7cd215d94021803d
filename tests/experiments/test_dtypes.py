"""The type that models are read and computed in, and what is said of it."""

import functools
import gc
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import native, sampling, verify
from specjax import pair as embedded
from specjax.bench import load, memory
from specjax.bench.config import Candidate, Checkpoint, Draft, Prompts
from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.checkpoints import precision
from specjax.drafters import lm
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import layouts, low_bits
from specjax.types import Params, Spec
from tests.support import device_memory, tiny


def types(tree) -> set[str]:
  return {leaf.dtype.name for leaf in jax.tree.leaves(tree)}


def with_draft(folder, own='', **changes):
  draft = Draft(str(folder / 'draft'), dtype=own)
  return tiny.experiment(folder, draft=draft, candidates={}, **changes)


@pytest.mark.parametrize(
  ('own', 'draft'), [('', 'bfloat16'), ('float32', 'float32')]
)
def test_a_draft_has_the_targets_type_or_its_own(folder, own, draft):
  (method,) = load.load_experiment(
    plan(with_draft(folder, own, dtype='bfloat16'))
  ).methods
  assert types(method.params.target) == {'bfloat16'}
  assert types(method.params.drafter) == {draft}
  assert method.draft_dtype == draft
  state = jax.eval_shape(
    lambda params: generate.start(
      params, [[5, 6, 7]], spec=method.spec, new_tokens=4,
      key=generate.row_keys(0, [0]), values=sampling.make(1, 1.0),
    ),
    method.params,
  )  # fmt: skip
  assert types(state.cache) == {'bfloat16'}
  assert types(state.drafter.state) == {draft}


def test_what_drafts_for_a_draft_has_its_type(folder, tmp_path):
  small = tmp_path / 'small'
  shutil.copytree(folder / 'draft', small)
  inner = Candidate('quantized', 2, str(small))
  options = {'inner': inner, 'dtype': 'float16'}
  staged = Candidate('cascade', 2, str(folder / 'draft'), options)
  x = tiny.experiment(folder, candidates={'staged': staged}, dtype='bfloat16')
  planned = plan(x)
  described = load.survey(planned).described
  assert planned.dtypes(described) == {
    'target': 'bfloat16',
    'draft staged': 'float16',
    'draft staged.inner': 'float16',
  }


@pytest.mark.parametrize(
  ('backend', 'stored', 'found'),
  [
    ('cpu', 'bfloat16', 'float32'),
    ('gpu', 'bfloat16', 'bfloat16'),
    ('gpu', 'float16', 'float16'),
    ('gpu', 'float64', 'float32'),
  ],
)
def test_auto_is_the_files_own_but_on_a_cpu(
  monkeypatch, backend, stored, found
):
  monkeypatch.setattr(jax, 'default_backend', lambda: backend)
  assert precision.resolve('auto', stored) == found
  assert precision.resolve('float16', stored) == 'float16'


def test_a_type_that_the_device_lacks_is_refused_before_weights(
  folder, monkeypatch, capsys
):
  x = with_draft(folder, 'float16')
  monkeypatch.setattr(
    precision, 'refusal', lambda name: 'no' * (name == 'float16')
  )
  monkeypatch.setattr(load.checkpoints, 'load', None)
  with pytest.raises(UserError, match='dtype of the draft lm is float16: no'):
    load.load_experiment(plan(x))
  assert capsys.readouterr().err == ''


def test_a_cpu_says_once_that_16_bits_are_slow(folder, capsys):
  for dtype, lines in (('auto', 0), ('bfloat16', 1)):
    planned = plan(with_draft(folder, dtype=dtype))
    load.check_dtypes(planned, load.survey(planned).described)
    found = capsys.readouterr().err
    assert found.count('\n') == lines
    assert ('bfloat16 as float32' in found) == bool(lines)


def arrays(text: str, dtype: str) -> set[tuple[int, ...]]:
  """Sorted shapes of all arrays of a type in a lowered program."""
  shapes = re.findall(rf'tensor<([\dx]+)x{dtype}>', text)
  return {tuple(sorted(map(int, shape.split('x')))) for shape in shapes}


def cast(model, dtype):
  """Shapes of a model's weights in a type."""
  return jax.eval_shape(
    lambda: jax.tree.map(
      lambda x: x.astype(dtype), model.init(jax.random.key(0))
    )
  )


def lower(spec, weights, own):
  """The programs that a run decodes with: prefill, first step, loop."""
  number = jax.ShapeDtypeStruct((3,), jnp.int32)
  tokens = jax.ShapeDtypeStruct((3, 128), jnp.int32)
  target, drafter = spec.target, spec.drafter
  read = functools.partial(generate.read_prompts, target=target, taps=())
  yield generate.read_prompts.lower(
    weights, tokens, number, None, target=target, taps=()
  )
  cache, hidden = jax.eval_shape(read, weights, tokens, number, None)
  params, keys = Params(weights, own), generate.row_keys(0, range(3))
  inputs = params, tokens, number, number, cache, hidden
  rest = dict(drafter=drafter, target=target)
  values = sampling.make(3, 1.0), None
  yield generate._begin.lower(*inputs, keys, *values, **rest)
  state = jax.eval_shape(
    lambda *args: generate._begin(*args, keys, *values, **rest), *inputs
  )
  steps = jax.ShapeDtypeStruct((), jnp.int32)
  yield generate.loop.lower(params, state, steps, spec=spec)


@pytest.mark.parametrize(
  'dtype',
  [
    'bfloat16',
    *(pytest.param(x, marks=pytest.mark.slow) for x in ('float32', 'float16')),
  ],
)
def test_no_program_has_weights_in_float32(dtype):
  """Before XLA: its CPU backend multiplies narrow numbers as float32.

  Speculative decoding, and the pass that measures alpha. Sizes are such that no
  activation has the shape of a weight, or of one that was transposed.
  """
  sizes = {'head_dim': 10, 'mlp_width': 84, 'vocab': 93}
  target, draft = (tiny.model(36, n, **sizes) for n in (2, 1))
  weights, own = cast(target, dtype), cast(draft, dtype)
  matrices = {
    tuple(sorted(x.shape))
    for x in jax.tree.leaves((weights, own))
    if x.ndim > 1
  }
  specs = (
    (Spec(target, lm.make(draft, 4), verify.token), own),
    (Spec(target, lm.make(draft, 1), verify.observe), own),
  )
  for spec, drafts in specs:
    programs = [*lower(spec, weights, drafts)]
    found = [arrays(x.as_text(), 'f32') & matrices for x in programs]
    if dtype != 'float32':
      assert not any(found)
    else:
      assert found[0]
      assert found[2]


def peak(x, monkeypatch):
  """What an untimed run is predicted to hold, and what it held; bytes."""
  with monkeypatch.context() as patch:
    peaks = device_memory.watch(patch)
    gc.collect()  # Arrays of earlier tests would be freed in the run.
    before = device_memory.living()
    runner = Runner(plan(x))
    described = load.survey(runner.plan).described
    texts = [t for x in runner.built.prompts.values() for t in x.texts]
    sizes = max(map(len, texts)), len(texts)  # Of one domain.
    held = memory.predict(runner.plan, described, *sizes)
    runner.run()
  return held, max(one[0] for one in peaks.values()) - before


@pytest.mark.slow
@pytest.mark.parametrize('pair', ['bfloat16', 'float32', 'alike', 'embedded'])
def test_memory_is_predicted(folder, tmp_path, monkeypatch, pair):
  """Also of a draft as large as its target, and of the embedded pair."""
  more = {'temperatures': (1.0,), 'timed': False, 'max_new_tokens': 4}
  more['results'] = str(tmp_path / 'a')
  if pair == 'alike':
    heads = {'num_heads': 8, 'num_kv_heads': 4, 'head_dim': 8}
    tiny.write_pair(tmp_path, **heads)
    x = with_draft(tmp_path, batch=4, **more)
    x.prompts = Prompts(domains=('code',), count=4, length=96)
    x.draft.path = x.target.path
  elif pair == 'embedded':
    candidates = {'lm': Candidate('lm', 3, embedded.path('draft-128'))}
    x = tiny.experiment(
      tmp_path, dtype='float32', candidates=candidates, **more
    )
    x.target.path = embedded.path('target')
    x.prompts = Prompts(domains=('code',), count=1, length=96)
  else:
    x = with_draft(folder, dtype=pair, **more)
  if pair == 'bfloat16':
    # The kernel makes no copies in float32, which are predicted.
    monkeypatch.setattr(
      layouts,
      'arrange',
      lambda *whole: {layouts.WHOLE: layouts.Arranged(*whole[:2])},
    )
  held, measured = peak(x, monkeypatch)
  if pair in ('bfloat16', 'float32'):
    assert bool(held.layouts) == (native.available() and pair == 'float32')
  arrays = held.total - held.process
  assert arrays == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
def test_16_bits_accept_as_often_as_float32(tmp_path):
  rows = {}
  for dtype in ('float32', 'bfloat16', 'float16'):
    x = tiny.experiment(
      tmp_path, target=Checkpoint(embedded.path('draft-128')),
      candidates={'lm': Candidate('lm', 3, embedded.path('draft-64'))},
      prompts=Prompts(domains=('code',), count=8, length=64),
      temperatures=(1.0,), max_new_tokens=48, batch=8, timed=False, dtype=dtype,
      results=str(tmp_path / dtype),
    )  # fmt: skip
    runner = Runner(plan(x))
    runner.run()
    (rows[dtype],) = runner.folder.rows
  for dtype in precision.NARROW:
    assert rows[dtype]['dtype'] == dtype
    for name in ('alpha_ci', 'tau_ci'):
      (low, high), (least, most) = (rows[d][name] for d in ('float32', dtype))
      assert low <= most
      assert least <= high
    # On other texts: narrow logits choose other tokens.
    assert abs(rows[dtype]['alpha'] - rows['float32']['alpha']) < 0.1


def test_what_would_fit_is_named_and_fits(folder, monkeypatch):
  monkeypatch.setattr(memory, 'of_process', lambda: 1 << 20)  # It grows.
  prompts = Prompts(domains=('code',), count=9, length=16)
  planned = plan(with_draft(folder, prompts=prompts))
  described = load.survey(planned).described
  held = memory.predict(planned, described, 16, 9)
  limit = held.total - held.cache // 2
  monkeypatch.setattr(memory, 'available', lambda count: limit)
  with pytest.raises(UserError, match=r'choose prompts\.count=\d') as error:
    memory.check(planned, described, 16, 9, held)
  count = int(re.search(r'prompts\.count=(\d+)', str(error.value))[1])
  assert 1 <= count < 9
  fewer = memory.predict(planned, described, 16, count)
  memory.check(planned, described, 16, count, fewer)
  # One more would not do.
  more = memory.predict(planned, described, 16, count + 1, compiles=False)
  share = held.activations * (count + 1) // 9
  assert more.total + share > limit

  # Shorter prompts are named, too.
  held = memory.predict(planned, described, 1000, 2, compiles=False)
  assert held.activations is None
  limit = held.total - held.cache // 2
  with pytest.raises(UserError, match=r'prompts\.length=\d') as error:
    memory.check(planned, described, 1000, 2, held)
  length = int(re.search(r'prompts\.length=(\d+)', str(error.value))[1])
  assert 1 < length < 1000
  for tokens, does in ((length, True), (length + 1, False)):
    found = memory.predict(planned, described, tokens, 2, compiles=False)
    assert (found.total <= limit) == does

  # What fits nowhere needs a smaller model.
  limit = 10
  held = memory.predict(planned, described, 16, 2, compiles=False)
  with pytest.raises(UserError, match='but has 10: choose a smaller model'):
    memory.check(planned, described, 16, 2, held)


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize('rounds', [False, True])
def test_every_model_of_a_run_is_read_in_few_bits(rounds, folder):
  """By all that drafts, and what that takes is predicted."""
  skipped = Candidate('skip', 2, options={'skip': (0,)})
  x = with_draft(folder, weights='int8', rounds=rounds, timed=False)
  x.candidates = {'skipped': skipped}
  planned = plan(x)
  built = load.load_experiment(planned)
  target = specjax.load(planned.target, weights='int8', rounds=rounds)
  assert len(built.methods) == 2
  for method in built.methods:
    jax.tree.map(
      np.testing.assert_array_equal, method.params.target, target.params
    )
    said = f'int8{", activations rounded" * rounds}'
    assert built.models(method)['weights'] == said
  (draft,) = (m.params.drafter for m in built.methods if m.drafter == 'lm')
  assert low_bits.is_low_bits(draft['unembedding'])
  described = load.survey(planned).described
  predicted = memory.predict(planned, described, 9, 2, compiles=False)
  assert predicted.layouts == 0
  assert predicted.parameters == sum(
    x.nbytes for x in jax.tree.leaves(target.params)
  )
