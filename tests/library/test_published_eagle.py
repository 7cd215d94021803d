"""Published EAGLE heads say what their own modules say."""

import dataclasses
import functools
import types

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from huggingface_hub import errors

from specjax import checkpoints, sampling
from specjax.drafters import eagle, lm, medusa
from specjax.drafters.eagle import at_once
from specjax.drafters.eagle.module import near, sizes_of
from specjax.drafters.heads import files as heads
from specjax.drafters.heads import published
from specjax.types import Params, Target, Verdict
from tests.library import test_drafter_promises as promises
from tests.support import directories, hub, models
from tests.support import published_eagle as written

HOST = Target(written.TARGET, max_length=100)
TEXT = np.random.default_rng(1).integers(0, written.V, 40).astype(np.int32)


@functools.cache
def target_weights():
  return models.weights(written.TARGET, 5)


@functools.cache
def tapped(taps):
  out = models.see(written.TARGET, target_weights(), TEXT[None], taps)
  return np.asarray(out.taps[0])


@functools.partial(jax.jit, static_argnums=0)
def fed(walker, params, state, block, ctx, row, token, features):
  sees = jnp.arange(4)[None, None] <= row
  return walker.feed(
    params, state, block, ctx, row, row, token[:, None], features, sees
  )


@pytest.fixture(
  params=models.slow_unless(
    ['EAGLE-1', 'speculators, Qwen3', 'P-EAGLE'], written.LAYOUTS
  )
)
def layout(request):
  return written.LAYOUTS[request.param]


def check_along_a_text(walker, model, params, text, hidden, draft, cache=None):
  """Along a text, and after tokens that were rejected.

  Args:
    walker: that drafts.
    model: the target.
    params: of both.
    text: [T].
    hidden: [T, taps, E] features of the target.
    draft: (tokens, hidden, drafted) -> logits [4, V], by numpy.
    cache: of the text, for a drafter that attends to it.
  """
  vocab = model.config.vocab_size
  tokens = np.zeros((1, 128), np.int32)
  length = 6
  tokens[0, :length] = text[:length]
  begin = np.zeros((1, 128, *hidden.shape[1:]), hidden.dtype)
  begin[0, : length - 1] = hidden[: length - 1]
  ctx, _ = promises.fresh(
    models.DRAFTERS['plain'][0], params, tokens, np.array([length]),
    sampling.make(1, 1.0), target=model,
  )  # fmt: skip
  if cache is not None:
    ctx = ctx._replace(cache=cache)
  state, block = jax.jit(walker.init, static_argnums=3)(params, ctx, begin, 4)
  start = jax.jit(walker.start)
  commit = jax.jit(walker.commit)
  for accepted in (2, 0, 3):
    drafted = [*text[length : length + accepted]]
    wrong = [(text[length + i] + 1) % vocab for i in range(accepted, 3)]
    drafted += wrong
    step = start(params, state, block, ctx)
    said = [step.logits[0, 0]]
    for row, token in enumerate(drafted, 1):
      step = fed(
        walker, params, state, step.block, ctx, jnp.int32(row),
        jnp.array([token]), step.features,
      )  # fmt: skip
      said.append(step.logits[0, 0])
    expected = draft(text[:length], hidden, drafted)
    np.testing.assert_allclose(np.stack(said), expected, rtol=1e-5, atol=1e-5)
    assert np.isfinite(expected).any(-1).all()
    old, length = length, length + accepted + 1
    tokens[0, :length] = text[:length]
    ctx = ctx._replace(
      tokens=jnp.asarray(tokens), length=jnp.full(1, length, jnp.int32)
    )
    path = np.where(np.arange(4) <= accepted, np.arange(4), 0)[None]
    verdict = Verdict(jnp.asarray(path), jnp.array([accepted]), None)
    along = hidden[old - 1 : old + 3][None]
    state = commit(params, state, step.block, ctx, verdict, jnp.asarray(along))


def test_drafts_are_those_of_the_published_module(layout, tmp_path):
  weights = written.tensors(layout)
  path = written.write(tmp_path / 'head', layout, weights)
  loaded = eagle.load(HOST, path)
  assert loaded.pairing == published.UNVERIFIED
  assert loaded.make(3).taps == layout.taps
  found = published.find(path, written.TARGET)
  head = eagle.Head(written.TARGET, sizes_of(found.config))
  restated = written.Restated(layout, weights, target_weights())
  walker = eagle.walk(head) if layout.mask is None else at_once.walk(head, 4)
  check_along_a_text(
    walker, written.TARGET, Params(target_weights(), loaded.params), TEXT,
    tapped(layout.taps), restated.draft,
  )  # fmt: skip


AT_ONCE = written.LAYOUTS['P-EAGLE']


@pytest.mark.parametrize(
  ('left_out', 'changes', 'message'),
  [
    ('mask_hidden', {}, 'of P-EAGLE, but mask_hidden is not among'),
    ('mask_hidden', {'speculators_model_type': None}, 'but mask_hidden is not'),
    ('', {'mask_token_id': None}, 'must name the token of mask_hidden'),
    ('', {'mask_token_id': written.V}, f'of the {written.V} .*; got 23'),
    ('', {'mask_token_id': '5'}, "mask_token_id = '5'; expected a whole"),
  ],
)
def test_masks_that_do_not_fit_are_refused(
  tmp_path, left_out, changes, message
):
  weights = without(left_out, AT_ONCE)
  refused(written.write(tmp_path, AT_ONCE, weights, **changes), message)


@pytest.mark.parametrize(
  ('sizes', 'message'),
  [
    ({'layers': 0}, 'layers must'), ({'mask_token': 1}, 'is of version 3'),
    ({'taps': (7, 8)}, 'reads one layer'),
  ],
)  # fmt: skip
def test_sizes_that_no_head_has_are_refused(sizes, message):
  with pytest.raises(ValueError, match=message):
    eagle.Sizes(**{'version': 1, 'taps': (8,)} | sizes)
  with pytest.raises(ValueError, match=message):
    eagle.trainable(written.TARGET, 1, **sizes)


def test_near_readings_of_masks_are_other_heads(tmp_path):
  path = written.write(tmp_path, AT_ONCE)
  assert heads.describe(path, HOST).format == 'P-EAGLE'
  found = eagle.alternatives(HOST, path)
  assert {'taps (0, 2, 4)', "without the norm 'fused'"} <= {*found}
  options = {}, {'window': 6, 'sinks': 1}, *found.values()
  made = [eagle.load(HOST, path, **x).make(3) for x in options]
  assert len({*made}) == len(options)


def test_near_readings_are_one_mistake_away():
  first = eagle.Sizes(1, (0,), final_norm=False, feature_first=True)
  norms = ('feature', 'layer'), ('token', 'layer'), ('token', 'feature')
  assert [*near(first, first, 2).values()] == [
    {'taps': (1,)}, *({'norms': x} for x in norms), {'feature_first': False},
    {'final_norm': True},
  ]  # fmt: skip
  both = eagle.Sizes(3, (0, 1), norms=('carried', 'last'))
  found = [x.get('norms') for x in near(both, both, 2).values()]
  assert found == [('last',), (), None]
  one = dataclasses.replace(both, norms=('last',))
  found = [x.get('norms') for x in near(one, both, 2).values()]
  assert found == [(), ('last', 'carried'), None]


def refused(path, message, host=HOST):
  models.refused(message, eagle.load, host, path)
  models.refused(message, heads.describe, path, host)


THIRD, FIRST = written.LAYOUTS['EAGLE-3'], written.LAYOUTS['EAGLE-1']


def without(name, layout=THIRD, **more):
  weights = written.tensors(layout) | more
  return {n: x for n, x in weights.items() if n != name}


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'speculators_model_type': 'eagle'}, 'calls it version 1 .* version 3'),
    ({'architectures': ['EagleLlamaForCausalLM']}, 'calls it version 1'),
    ({written.IDS: [1, 5, 10]}, 'layers that do not exist: the target has 9'),
    ({written.IDS: [0, 5, 8]}, 'layers that do not exist'),
    ({written.IDS: [5, 1, 8]}, 'in the order of the layers'),
    ({written.IDS: [1, 5, 5]}, 'each once'),
    ({written.IDS: [1, 5]}, 'are 2 layers of the target, and fc reads 3'),
    ({'vocab_size': 30}, r't2d has shape \(23,\)'),
    ({'num_hidden_layers': 2}, r'unset parameters: layer1/down/w'),
    ({'hidden_size': 16}, 'of width 16, and its tensors of width 8'),
    ({'target_hidden_size': 7}, 'no multiple of the width of the target, 7'),
    ({'target_hidden_size': 24}, 'are 3 layers of the target, and fc reads 1'),
    ({'num_attention_heads': 4}, 'has shape .* where config.json makes it'),
    ({'num_attention_heads': 999}, 'makes head_dim 1'),
    ({'fc_norm': True}, 'has fc_norm = True, but .* not among'),
    ({'hidden_act': 'gelu_fast'}, None),
    ({'hidden_act': 'gelu'}, 'hidden_act must be one of silu'),
    ({'rope_scaling': {'rope_type': 'mrope'}}, 'rope_type = .mrope.'),
    ({'layer_types': ['sliding_attention']}, 'sliding attention'),
    (
      {'num_attention_heads': '2'},
      "num_attention_heads = '2'; expected a whole",
    ),
    ({'head_dim': 0}, 'head_dim = 0; expected a whole'),
    ({'target_hidden_size': '8'}, 'target_hidden_size = .8.; expected'),
    ({'eagle_config': [1]}, r'eagle_config = \[1\]; expected an object'),
    ({'eagle_config': {written.IDS: '024'}}, 'expected a list of layers'),
    ({written.IDS: ['a', 2, 3]}, 'expected a list of layers'),
    ({'speculators_config': {'verifier': 1}}, 'verifier = 1; expected an obj'),
    ({'transformer_layer_config': 'x'}, 'expected an object'),
  ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path, changes, message):
  path = written.write(tmp_path / 'head', THIRD, **changes)
  if message is None:
    eagle.load(HOST, path)
  else:
    refused(path, message)


def test_what_config_json_leaves_out_is_as_usual_or_as_the_tensors(tmp_path):
  shapes = {'q': (64, 16), 'k': (4, 16), 'v': (4, 16), 'o': (8, 64)}
  own = {
    f'midlayer.self_attn.{x}_proj.weight': np.ones(shape, np.float32)
    for x, shape in shapes.items()
  }
  own |= {name: np.zeros(2) for name in ('rotary_emb.inv_freq', 'x.t2d')}
  path = directories.write(tmp_path / 'third', {}, without('', **own))
  found = published.find(path, written.TARGET)
  assert found.positions == 2048
  assert sizes_of(found.config) == eagle.Sizes(
    3, (1, 3, 5), 8, 32, 2, 2, 12, join='pair', norm_eps=1e-6, draft_vocab=7
  )
  config = {'model_type': 'qwen3', 'num_attention_heads': 2}
  weights = written.tensors(written.LAYOUTS['EAGLE-1 without bias'])
  path = directories.write(tmp_path / 'first', config, weights)
  refused(path, 'is for a vocabulary of 151936 tokens')


D2T = written.tensors(THIRD)['d2t']


@pytest.mark.parametrize(
  ('weights', 'message'),
  [
    (without('norm.weight'), r'unset parameters: norm/scale \(norm\.weight\)'),
    (without('', extra=np.zeros(2)), 'unused tensors: extra'),
    (without('d2t'), 'd2t, which says of which, is missing'),
    (without('', d2t=D2T[:-1]), r'd2t has shape \(6,\)'),
    (without('', d2t=D2T + 30), 'the target 23'),
    (without('', d2t=-np.arange(7)), 'has a token twice'),
    (without('', t2d=~written.tensors(THIRD)['t2d']), 'd2t and t2d disagree'),
    (without('', **{'norm.weight': np.zeros(8, np.int8)}), 'is I8'),
    (
      without('', **{f'fc_norm.{i}.weight': np.ones(8) for i in (0, 1)}),
      'unset parameters: .norm_taps_2/scale',
    ),
    (without('midlayer.mlp.gate_proj.weight'), 'gate_proj.weight is missing'),
    (without('midlayer.self_attn.k_proj.weight'), 'k_proj.weight is missing'),
    (without('', **{'fc.weight': np.zeros(8)}), r'\(8,\) where 2 axes are'),
  ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, weights, message):
  refused(written.write(tmp_path, THIRD, weights), message)


@pytest.mark.parametrize(
  ('host', 'message'),
  [
    (models.tiny(written.V, 9, width=16), 'width 8, and the target has 16'),
    (models.tiny(29, 9), '23 tokens, and the target has 29'),
    (models.tiny(written.V, 5), 'in the order of the layers'),
  ],
)
def test_the_head_of_another_target_is_refused(tmp_path, host, message):
  refused(written.write(tmp_path, THIRD), message, Target(host))


def test_other_versions_and_damaged_weights_are_refused(tmp_path):
  wrong = {'architectures': ['LlamaEagle3']}
  path = written.write(tmp_path / 'first', FIRST, **wrong)
  refused(path, 'calls it version 3 .* those of version 1')
  path = written.write(tmp_path / 'third', THIRD)
  file = path / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:-100])
  refused(path, r'model\.safetensors is truncated or damaged')


def test_other_loaders_say_what_a_published_head_is(tmp_path):
  path = written.write(tmp_path, THIRD)
  with pytest.raises(ValueError, match=r'no medusa head.*drafters\.eagle'):
    medusa.load(HOST, path)
  with pytest.raises(ValueError, match=r'load it with specjax\.drafters\.eag'):
    lm.load(HOST, path)


def test_doubts_are_warned_of_and_not_refused(tmp_path):
  layout = written.LAYOUTS['speculators']
  path = written.write(tmp_path / 'head', layout)
  target = tmp_path / 'other'
  host = Target(written.TARGET, path=str(target), max_length=4000)
  with pytest.warns(published.PairingWarning) as caught:
    eagle.load(host, path)
  first, second = (str(one.message) for one in caught)
  assert {one.filename for one in caught} == {eagle.__file__}
  assert 'names owner/target as its target, and this one is called other' in (
    first
  )
  assert 'at most 2048 tokens, and this run has up to 4000' in second
  same = Target(written.TARGET, path=str(tmp_path / 'Target'), max_length=2048)
  assert heads.describe(path, same).notes == ()


def test_a_description_reads_no_weights(tmp_path):
  path = written.write(tmp_path, THIRD)
  found = heads.describe(path, HOST)
  count = sum(
    x.size for n, x in written.tensors(THIRD).items() if n != 't2d'
  ) + len(written.tensors(THIRD)['t2d'])
  assert found == heads.Description(
    'eagle', 'EAGLE-3', count, 'float32', (1, 3, 5), '', 'unverified', ()
  )
  assert heads.kind_of(path) == 'eagle'


@pytest.mark.parametrize(
  ('layers', 'taps'), [(8, (1, 3, 4)), (9, (1, 3, 5)), (12, (1, 5, 8))]
)
def test_a_head_that_names_no_layers_reads_these(tmp_path, layers, taps):
  """Before layers 2 and half of them, and before the last but two."""
  path = written.write(tmp_path, THIRD)
  host = Target(models.tiny(written.V, layers))
  assert heads.describe(path, host).taps == taps


def test_a_head_is_read_in_the_type_that_is_asked_for(tmp_path):
  path = written.write(tmp_path, THIRD)
  params = eagle.load(HOST, path, dtype='bfloat16').params
  assert params['fuse']['w'].dtype == jnp.bfloat16
  assert params['places'].dtype == jnp.int32


@pytest.mark.parametrize('pickled', [False, True])
def test_a_head_of_the_hub_is_fetched_and_recognised(
  tmp_path, monkeypatch, pickled
):
  """By its headers where it has safetensors, else by its pickled weights."""
  layout = written.LAYOUTS['SpecForge']
  source = written.write(tmp_path / 'source', layout)
  if pickled:
    (source / 'model.safetensors').rename(source / 'pytorch_model.bin')
    # torch, which reads such a file, need not be installed.
    monkeypatch.setattr(
      checkpoints.files,
      'Pickled',
      functools.partial(safetensors.safe_open, framework='numpy'),
    )
  cache = tmp_path / 'cache'
  hub.use(cache, monkeypatch)
  asked = []

  def download(model, allow_patterns, **options):
    wanted = huggingface_hub.utils.filter_repo_objects(
      [f.name for f in source.iterdir()], allow_patterns=allow_patterns
    )
    wanted = [*wanted]
    asked.extend(wanted)
    return hub.store(cache, model, source, wanted or ['config.json'])

  def metadata(model, revision):
    if pickled:
      raise errors.NotASafetensorsRepoError('none')
    header = huggingface_hub.parse_local_safetensors_file_metadata(
      source / 'model.safetensors'
    )
    return types.SimpleNamespace(files_metadata={'model.safetensors': header})

  monkeypatch.setattr(huggingface_hub, 'snapshot_download', download)
  monkeypatch.setattr(huggingface_hub, 'get_safetensors_metadata', metadata)
  place = checkpoints.locate('owner/head')
  assert asked == ['config.json']
  assert heads.kind_of(place) == 'eagle'
  assert ('pytorch_model.bin' in asked) == pickled
  assert heads.describe(place, HOST).format == 'EAGLE-3'
  loaded = eagle.load(HOST, 'owner/head')
  same = eagle.load(HOST, source)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, same.params)
  assert loaded.make(2) == same.make(2)
