"""Next-token layers say what their tensors say, and draft for hybrids."""

import functools
import json
import pathlib

import jax
import numpy as np
import pytest
import safetensors.numpy

import specjax
from specjax.drafters import eagle, mtp
from specjax.models import transformer
from specjax.types import Params
from tests.library.test_published_eagle import check_along_a_text
from tests.support import family_outputs, models
from tests.support.heads_in_numpy import rms_norm

E, V, EXPERTS = 24, 48, 5
TEXT = np.random.default_rng(1).integers(0, V, 40).astype(np.int32)
# Before the layer's names, and the names of what joins and ends it.
QWEN = (
  'mtp.layers.0.', 'mtp.pre_fc_norm_embedding', 'mtp.pre_fc_norm_hidden',
  'mtp.fc', 'mtp.norm',
)  # fmt: skip
MIMO = tuple(
  f'model.mtp_layers.0.{name}'
  for name in (
    '', 'token_layernorm', 'hidden_layernorm', 'input_proj', 'final_layernorm'
  )
)  # fmt: skip
DEEPSEEK = tuple(
  f'model.layers.2.{name}'
  for name in ('', 'enorm', 'hnorm', 'eh_proj', 'shared_head.norm')
)
# Of each kind, the names, and the layers of the target that it is like: what
# attends, and the MLP.
KINDS = {
  'qwen3_5_text': (QWEN, (1, 1)), 'qwen3_next': (QWEN, (1, 0)),
  'mimo': (MIMO, (0, 0)), 'deepseek_v3': (DEEPSEEK, (1, 1)),
}  # fmt: skip
NAMES = {kind: names for kind, (names, _) in KINDS.items()}
# What makes a model of such a layer alone, of those attributes that it has.
ALONE = {
  'num_hidden_layers': 1, 'layer_types': ['full_attention'],
  'mlp_only_layers': [], 'first_k_dense_replace': 0,
}  # fmt: skip


def stored_of(kind: str) -> family_outputs.Reference:
  """A stored checkpoint; MiMo is a Qwen2 without windows and scaling."""
  if kind != 'mimo':
    return family_outputs.load(kind)
  stored = family_outputs.load('qwen2')
  plain = {
    'use_sliding_window': False,
    'layer_types': ['full_attention'] * 2,
    'rope_parameters': {'rope_theta': 500.0, 'rope_type': 'default'},
  }
  return stored._replace(config=stored.config | plain)


def tensors_of(kind: str) -> dict[str, np.ndarray]:
  (layer, token, feature, join, last), like = KINDS[kind]
  random, made = np.random.default_rng(3), {}
  attends, mlp = (f'model.layers.{i}.' for i in like)
  for name, x in sorted(stored_of(kind).tensors.items()):
    before = mlp if '.mlp.' in name else attends
    if name.startswith(before):
      noise = 0.2 * random.normal(size=x.shape)
      made[name.replace(before, layer)] = x + noise
  for name in (token, feature, last):
    one = 0 if 'qwen3' in kind else 1
    made[f'{name}.weight'] = one + 0.3 * random.normal(size=E)
  made[f'{join}.weight'] = 1.5 * random.normal(size=(E, 2 * E)) / E**0.5
  return {name: x.astype(np.float16) for name, x in made.items()}


def write(folder, kind: str, left_out: str = '\n', **tensors):
  """Writes a target with its next-token layer; returns its directory."""
  stored = stored_of(kind)
  config = stored.config
  if kind == 'mimo':
    config = config | {
      'model_type': 'mimo',
      'architectures': ['MiMoForCausalLM'],
      'attention_bias': True,
      'num_nextn_predict_layers': 1,
    }
  every = stored.tensors | tensors_of(kind) | tensors
  if kind == 'deepseek_v3':
    copy = stored.tensors['model.embed_tokens.weight'].copy()
    every['model.layers.2.embed_tokens.weight'] = copy
  kept = {n: x for n, x in every.items() if left_out not in n}
  return stored._replace(config=config, tensors=kept).write(folder)


@pytest.fixture(scope='module')
def load(tmp_path_factory):
  folder = tmp_path_factory.mktemp('targets')

  @functools.cache
  def one(kind, dtype='auto'):
    path = str(write(folder / f'{kind}-{dtype}', kind))
    return specjax.load(path, dtype=dtype, layout='whole')

  return one


class Restated:
  """A next-token layer on whole texts, in float64.

  Its decoder layer is read as a model of its own: `test_families` compares
  these with transformers.
  """

  def __init__(self, kind: str, target, folder):
    self.kind, self.names = kind, NAMES[kind]
    own = tensors_of(kind)
    self.w = {n: np.float64(x) for n, x in own.items()}
    config = target.model.config
    self.eps, self.plus = config.norm_eps, float(config.norm_plus_one)
    params = target.params
    self.table = np.float64(params['embedding'])
    tied = config.tied_embeddings
    self.head = self.table.T if tied else np.float64(params['unembedding'])
    self.last = np.float64(params['norm']['scale'])
    stored = stored_of(kind)
    layer = {
      name.replace(self.names[0], 'model.layers.0.'): x
      for name, x in own.items()
      if name.removesuffix('.weight') not in self.names
    }
    rest = {n: x for n, x in stored.tensors.items() if '.layers.' not in n}
    alone = stored._replace(
      config=stored.config
      | {n: x for n, x in ALONE.items() if n in stored.config},
      tensors=rest | layer,
    )
    path = alone.write(folder)
    self.alone = specjax.load(path, dtype='float64', layout='whole')
    forward = functools.partial(self.alone.model.forward, taps=(0,))
    self.forward = jax.jit(forward)

  def layer(self, x):
    """The stream [T, E] after the layer."""
    mask, at = transformer.causal(1, V)
    table = np.zeros((V, E))
    table[: len(x)] = x  # Token i is embedded as row i.
    params = self.alone.params | {'embedding': table}
    out = self.forward(params, at, at, None, None, mask)
    return np.float64(out.taps[0, : len(x), 0])

  def norm(self, x, name):
    scale = self.last if name is None else self.w[f'{name}.weight']
    return rms_norm(x, scale + self.plus, self.eps)

  def say(self, tokens, features):
    """Returns what the next step and the head read, [T, E] each.

    Args:
      tokens: [T].
      features: [T, E] of the tokens before them.
    """
    _, token, feature, join, last = self.names
    parts = self.norm(self.table[tokens], token), self.norm(features, feature)
    if self.kind == 'mimo':
      parts = parts[::-1]
    joined = np.concatenate(parts, -1) @ self.w[f'{join}.weight'].T
    x = self.layer(joined)
    normed = self.norm(x, last)
    return x if self.kind == 'deepseek_v3' else normed, normed

  def draft(self, tokens, hidden, drafted):
    """Logits before and after each drafted token, [len(drafted) + 1, V]."""
    features = self.norm(np.float64(hidden[: len(tokens) - 1, 0]), None)
    after, said = list(tokens[1:]), []
    for token in (*drafted, None):
      made, normed = self.say(np.array(after), features)
      said.append(normed[-1] @ self.head)
      features = np.concatenate([features, made[-1:]])
      after.append(token)
    return np.stack(said)


@pytest.mark.parametrize(
  'kind', models.slow_unless(['mimo', 'qwen3_next'], NAMES)
)
def test_drafts_are_those_of_the_published_module(
  kind, load, tmp_path, float64
):
  target = load(kind, 'float64')
  loaded = mtp.load(target)
  model, last = target.model, target.model.config.num_layers - 1
  assert loaded.make(3).taps == (last,)
  hidden = models.see(model, target.params, TEXT[None], (last,)).taps[0]
  check_along_a_text(
    eagle.walk(mtp._read(target, '').head), model,
    Params(target.params, loaded.params), TEXT, np.asarray(hidden),
    Restated(kind, target, tmp_path / 'layer').draft,
  )  # fmt: skip


def stack_experts(tensors):
  """The same experts, all of a layer in one tensor."""
  made, experts = {}, {}
  for name, x in tensors.items():
    base, found, rest = name.partition('.experts.')
    if found:
      number, part, _ = rest.split('.')
      experts.setdefault((base, part), {})[int(number)] = x
    else:
      made[name] = x
  whole = {
    k: np.stack([x[i] for i in range(EXPERTS)]) for k, x in experts.items()
  }
  for base in {base for base, _ in whole}:
    both = whole[base, 'gate_proj'], whole[base, 'up_proj']
    made[f'{base}.experts.gate_up_proj'] = np.concatenate(both, 1)
    made[f'{base}.experts.down_proj'] = whole[base, 'down_proj']
  return made


def beside_images(tensors):
  return {
    name.replace('model.', 'model.language_model.'): x
    for name, x in tensors.items()
  }


@pytest.mark.parametrize(
  ('kind', 'change', 'config'),
  [
    ('qwen3_next', stack_experts, lambda text: text),
    (
      'qwen3_5_text',
      beside_images,
      lambda text: {'model_type': 'qwen3_5', 'text_config': text},
    ),
  ],
)
def test_files_that_name_tensors_otherwise_are_the_same(
  kind, change, config, load, tmp_path
):
  target = load(kind)
  path = pathlib.Path(target.path)
  text = json.loads((path / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps(config(text)))
  stored = safetensors.numpy.load_file(path / 'model.safetensors')
  changed = change(stored)
  assert changed.keys() != stored.keys()
  safetensors.numpy.save_file(changed, tmp_path / 'model.safetensors')
  other = specjax.load(tmp_path)
  same = functools.partial(jax.tree.map, np.testing.assert_array_equal)
  same(target.params, other.params)
  same(mtp.load(target).params, mtp.load(other).params)
  assert mtp.describe_head(other) == mtp.describe_head(target)


SHAPES = {
  'tree': {'widths': (2, 2)},
  'dynamic tree': {'beam': 2, 'nodes': 5},
  'some tokens': {'vocabulary': 30, 'window': 6, 'sinks': 1},
}


@pytest.mark.parametrize('options', models.slow_unless(['tree'], SHAPES))
def test_greedy_texts_are_those_of_the_target(options, load):
  stored = family_outputs.load('qwen3_5_text')
  target = load('qwen3_5_text')
  draft = mtp.load(target, **SHAPES[options])
  out = specjax.decode(
    target, draft, stored.prompts, gamma=3, new_tokens=20, temperature=0.0
  )
  assert out.tokens == stored.texts
  assert 0 < out.counts.accepted.sum() < out.counts.tried.sum()


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'left_out': 'mtp.'}, 'target .* has no next-token layer.* choose'),
    ({'left_out': 'mtp.norm'}, r'unset parameters: norm/scale \(mtp\.norm'),
    ({'mtp.layers.1.norm.weight': np.zeros(E)}, r'unused .*: mtp\.layers\.1'),
    ({'mtp.embed_tokens.weight': np.zeros((V, E))}, 'unused tensors: mtp.emb'),
    ({'mtp.fc.weight': np.zeros((E, E))}, r'mtp\.fc\.weight has shape'),
  ],
)
def test_a_layer_that_is_not_there_is_refused(tmp_path, changes, message):
  target = specjax.load(
    str(write(tmp_path / 'target', 'qwen3_5_text', **changes))
  )
  for function in (mtp.load, mtp.describe_head):
    models.refused(message, function, target)


def test_a_target_without_files_has_none():
  with pytest.raises(ValueError, match=r'target .* has no next-token layer'):
    mtp.load(specjax.types.Target(models.TARGET))


def test_a_reading_is_described_and_changed(load):
  for kind, name, norm, last in (
    ('mimo', 'MiMo', 'without', 1),
    ('qwen3_next', 'Qwen3-Next and Qwen3.5', 'without', 2),
    ('deepseek_v3', 'DeepSeek V3 and GLM-4.5', 'with', 1),
  ):
    count = sum(x.size for x in tensors_of(kind).values())
    wanted = 'mtp', f'next-token layer of {name}', count, 'float16', (last,)
    assert mtp.describe_head(load(kind))[:5] == wanted
    first = 'token first' if kind == 'mimo' else 'feature first'
    found = {*mtp.alternatives(load(kind))}
    assert {first, f"{norm} the norm 'carried'"} <= found
  target = load('mimo')
  others = mtp.alternatives(target)
  small = mtp.load(target, dtype='bfloat16').params
  assert small['join']['w'].dtype == 'bfloat16'
  windows = {}, {'window': 6}, {'window': 7}, {'window': 6, 'sinks': 1}
  assert len({mtp.load(target, **x).make(2) for x in windows}) == 4
  for option in others.values():
    mtp.load(target, **option)
  back = mtp.alternatives(target, **others['token first'])
  assert {'feature first'} == {*back} - {*others}
  with pytest.raises(ValueError, match=r'rope_theta.* is none of a head'):
    mtp.load(target, read_as={'rope_theta': 1.0})
