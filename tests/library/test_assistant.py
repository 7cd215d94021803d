"""The assistant of Gemma 4 says what its tensors say, and drafts exactly."""

import dataclasses
import functools

import numpy as np
import pytest

import specjax
from specjax.drafters import assistant
from specjax.drafters.heads import files
from specjax.models import transformer
from specjax.models.config import Mamba2
from specjax.types import Params
from tests.library.test_published_eagle import check_along_a_text
from tests.support import directories, family_outputs, models
from tests.support.heads_in_numpy import rms_norm, softmax

E, W, H, G, V, LAYERS = 24, 20, 4, 2, 48, 4
WINDOW, EPS = 5, 1e-6
FULL = 0, 3  # layers without a window, of heads of 16 entries, not 10
GROUPS, CHOSEN = 8, 3
TEXT = np.random.default_rng(1).integers(0, V, 40).astype(np.int32)


def config_of(grouped: bool) -> dict:
  """Returns what config.json says: layers like those of the tiny target."""
  text = family_outputs.load('gemma4_text').config | {
    'hidden_size': W,
    'hidden_size_per_layer_input': 0,
    'vocab_size_per_layer_input': 0,
    'use_double_wide_mlp': False,
    'num_kv_shared_layers': LAYERS,
  }
  return {
    'model_type': 'gemma4_assistant',
    'architectures': ['Gemma4AssistantForCausalLM'],
    'backbone_hidden_size': E,
    'num_centroids': GROUPS,
    'centroid_intermediate_top_k': CHOSEN,
    'use_ordered_embeddings': grouped,
    'text_config': text,
  }


def tensors_of(grouped: bool) -> dict[str, np.ndarray]:
  """Random weights by their published names."""
  random = np.random.default_rng(3)

  def matrix(*shape):
    return random.normal(size=shape) / shape[-1] ** 0.5

  def scale(size):
    return 0.8 + 0.3 * random.normal(size=size)

  made = {
    'model.embed_tokens.weight': 3 * matrix(V, W),
    'model.norm.weight': scale(W),
    'pre_projection.weight': matrix(W, 2 * E),
    'post_projection.weight': matrix(E, W),
  }
  for i in range(LAYERS):
    width = 16 if i in FULL else 10
    own = {
      'self_attn.q_proj.weight': matrix(H * width, W),
      'self_attn.o_proj.weight': matrix(W, H * width),
      'self_attn.q_norm.weight': scale(width) / 4,
      'mlp.gate_proj.weight': matrix(20, W),
      'mlp.up_proj.weight': matrix(20, W),
      'mlp.down_proj.weight': matrix(W, 20),
      'layer_scalar': scale(1),
    }
    for name in (
      'input_layernorm', 'post_attention_layernorm',
      'pre_feedforward_layernorm', 'post_feedforward_layernorm',
    ):  # fmt: skip
      own[f'{name}.weight'] = scale(W)
    made |= {f'model.layers.{i}.{name}': x for name, x in own.items()}
  made = {name: x.astype(np.float16) for name, x in made.items()}
  if grouped:
    groups = 'masked_embedding.centroids.weight'
    made[groups] = matrix(GROUPS, W).astype(np.float16)
    made['masked_embedding.token_ordering'] = random.permutation(V)
  return made


def write(folder, grouped: bool = False, left_out: str = '\n', **changes):
  """Writes an assistant; returns its directory."""
  tensors = tensors_of(grouped)
  kept = {n: x for n, x in tensors.items() if left_out not in n}
  return str(directories.write(folder, config_of(grouped) | changes, kept))


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  folder = tmp_path_factory.mktemp('targets') / 'gemma4'
  path = family_outputs.load('gemma4_text').write(folder)
  return specjax.load(str(path), layout='whole')


def turn(x, position, width, theta, part):
  """Rotary positions of heads [H, D]; a part of the frequencies turns."""
  half = width // 2
  frequency = theta ** (-2 * np.arange(half) / width)
  angle = position * np.where(np.arange(half) < part * half, frequency, 0)
  a, b = x[:, :half], x[:, half:]
  sin, cos = np.sin(angle), np.cos(angle)
  return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class Restated:
  """An assistant one token at a time, in float64.

  Attributes:
    keys: of the target's last layer of each kind, [G, T, D], of a text.
    values: likewise.
  """

  def __init__(self, target, grouped, flight):
    self.grouped = grouped
    self.w = {n: np.float64(x) for n, x in tensors_of(grouped).items()}
    self.table = np.float64(target.params['embedding'])
    self.last = np.float64(target.params['norm']['scale'])
    # The last layers attend to the first two, as here.
    self.kv = {i: flight[0 if i in FULL else 1] for i in range(LAYERS)}

  def layer(self, i, x, used):
    w = functools.partial(self.part, i)
    width = 16 if i in FULL else 10
    q = (w('self_attn.q_proj') @ self.norm(i, 'input_layernorm', x)).reshape(
      H, width
    )
    q = rms_norm(q, w('self_attn.q_norm'), EPS)
    theta, part = (500.0, 0.5) if i in FULL else (50.0, 1.0)
    q = turn(q, used, width, theta, part).reshape(G, H // G, width)
    first = 0 if i in FULL else max(0, used - 1 - WINDOW)
    k = np.float64(self.kv[i].k)[0, :, :, first:used]
    v = np.float64(self.kv[i].v)[0, :, first:used]
    y = softmax(q @ k) @ v
    y = w('self_attn.o_proj') @ y.reshape(-1)
    x = x + self.norm(i, 'post_attention_layernorm', y)
    y = self.norm(i, 'pre_feedforward_layernorm', x)
    gate = w('mlp.gate_proj') @ y
    gate = gate * (
      1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))
    )
    y = w('mlp.down_proj') @ (gate / 2 * (w('mlp.up_proj') @ y))
    x = x + self.norm(i, 'post_feedforward_layernorm', y)
    return x * self.w[f'model.layers.{i}.layer_scalar']

  def part(self, i, name):
    return self.w[f'model.layers.{i}.{name}.weight']

  def norm(self, i, name, x):
    return rms_norm(x, self.part(i, name), EPS)

  def draft(self, tokens, hidden, drafted):
    """Logits [4, V] after the last token and after each drafted one."""
    used, said = len(tokens) - 1, []
    feature = rms_norm(np.float64(hidden[used - 1, 0]), self.last, EPS)
    for token in (tokens[-1], *drafted):
      x = np.concatenate([self.table[token] * E**0.5, feature])
      x = self.w['pre_projection.weight'] @ x
      for i in range(LAYERS):
        x = self.layer(i, x, used)
      x = rms_norm(x, self.w['model.norm.weight'], EPS)
      feature = self.w['post_projection.weight'] @ x
      logits = self.w['model.embed_tokens.weight'] @ x
      if self.grouped:
        score = self.w['masked_embedding.centroids.weight'] @ x
        order = self.w['masked_embedding.token_ordering'].astype(int)
        best = np.argsort(-score)[:CHOSEN]
        kept = order.reshape(GROUPS, -1)[best].reshape(-1)
        logits[np.setdiff1d(np.arange(V), kept)] = -np.inf
      said.append(logits)
    return np.stack(said)


@pytest.mark.parametrize('grouped', models.slow_unless([True], [False, True]))
def test_drafts_are_those_of_the_published_module(
  grouped, target, tmp_path, float64
):
  # In double precision, as logits of single precision have errors of 1e-5.
  path = write(tmp_path / 'head', grouped)
  weights = models.double(target.params)
  loaded = assistant.load(target, path)
  last = target.model.config.num_layers - 1
  assert loaded.make(3).taps == (last,)
  out = models.see(target.model, weights, TEXT[None], (last,))
  read = assistant._read(target, path, {})
  head = assistant.Head(target.model, read.config['module'])
  check_along_a_text(
    assistant.walk(head), target.model,
    Params(weights, models.double(loaded.params)), TEXT,
    np.asarray(out.taps[0]), Restated(target, grouped, out.flight).draft,
    cache=out.flight,
  )  # fmt: skip


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'left_out': 'post_projection'}, 'unset parameters: post/w'),
    ({'left_out': 'q_norm'}, 'unset parameters: layer0/q_norm'),
    ({'backbone_hidden_size': None}, 'features of width 1536'),
    ({'grouped': True, 'num_centroids': 7}, 'num_centroids = 7'),
    ({'grouped': True, 'num_centroids': None}, 'num_centroids = 2048'),
    ({'grouped': True, 'centroid_intermediate_top_k': None}, '32 of num_'),
    ({'text_config': []}, 'text_config .* an object'),
  ],
)
def test_files_that_are_damaged_are_refused(changes, message, target, tmp_path):
  path = write(tmp_path / 'head', **changes)
  models.refused(message, assistant.load, target, path)


def test_keys_of_another_target_are_refused(target):
  module = assistant.Assistant(target.model.config, E)
  own = target.model.config
  states = Mamba2(tuple(range(LAYERS)), 1, 2, 3, 4, kernel=2)
  for changes, message in (
    ({'wide': dataclasses.replace(own.wide, head_dim=8)}, '2 heads of 16'),
    ({'windows': (5,) * LAYERS}, 'without a window'),
    ({'recurrent': states}, 'the target has none'),
  ):
    other = transformer.build(dataclasses.replace(own, **changes))
    with pytest.raises(ValueError, match=message):
      assistant.Head(other, module)


def test_it_is_described_and_read_otherwise(target, tmp_path):
  path = write(tmp_path / 'head')
  found = files.describe(path, target)
  count = sum(x.size for x in tensors_of(False).values())
  assert (found.kind, found.parameters) == ('assistant', count)
  others = assistant.alternatives(target, path)
  assert [*others.values()] == [
    {'read_as': {'normed': False}}, {'read_as': {'ahead': 1}}
  ]  # fmt: skip
  _, back = assistant.alternatives(target, path, {'ahead': 1}).values()
  assert back['read_as']['ahead'] == 0
  for options in others.values():
    assistant.load(target, path, **options)
