"""The operation at which bits part is named, of bugs that are planted in each.

On the kernel nothing parts but what is planted; with XLA's products whatever is
named must be there in the logits, too.
"""

import contextlib
import functools
import itertools
import types
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specjax import native, sampling
from specjax.bench import parting, ties
from specjax.bench.parting import HIDDEN, NOWHERE, Parting, Scoring
from specjax.models import cache as caches
from specjax.models import (
  devices,
  rotary,
  transformer,
  uniform,
  variants,
)
from specjax.models.own import Sizes
from specjax.types import KV
from tests.library.test_bits import VOCAB, made, texts_of
from tests.support import models

TEXT = texts_of()[0, 1].tolist()
PROMPT, NEW = TEXT[:31], TEXT[31:40]
SLOTS, ROWS = 128, 5
NEW_SIZE = itertools.count(512)
LEAST = 3  # rows of a block in which a planted operation adds otherwise


def form(layers=1):
  """A model that is traced anew, whatever was traced of equal ones."""
  model, params = made('float32')
  sizes = {'num_layers': layers, 'windows': model.config.windows[:layers]}
  return variants._changed(model, **sizes, max_positions=next(NEW_SIZE)), params


def ways(model, params, rows=ROWS, batch=1):
  return [
    Scoring(model, params, 1, 1, SLOTS),
    Scoring(model, params, rows, batch, SLOTS),
  ]


def blocks(*path):
  weight = made('float32').params
  for name in path:
    weight = weight[name]
  return weight.blocks.shape


def product(*path, layer=None):
  """Inputs of a product are added backwards; `layer` counts equal shapes."""
  usual, calls, shape = native.product, [], blocks(*path)

  def compute(x, w):
    if w.shape != shape:
      return usual(x, w)
    calls.append(w)
    if len(x) < LEAST or layer not in (None, (len(calls) - 1) % 2):
      return usual(x, w)
    return usual(x[:, ::-1], w[:, ::-1])

  return native, 'product', compute


def norm():
  """The last of the three norms of a pass through a layer is a bit off."""
  usual, calls = native.norm, []

  def compute(x, scale, *args, **more):
    calls.append(x)
    y = usual(x, scale, *args, **more)
    off = x.shape[1] >= LEAST and len(calls) % 3 == 0
    return jnp.nextafter(y, jnp.inf) if off else y

  return native, 'norm', compute


def head():
  usual = transformer.multiply

  def compute(x, w, *args):
    if x.shape[1] < LEAST:
      return usual(x, w, *args)
    return usual(x[..., ::-1], w._replace(blocks=w.blocks[:, ::-1]), *args)

  return transformer, 'multiply', compute


def positions():
  usual = rotary.turns

  def compute(positions, frequency, amplitude=1.0):
    if positions.shape[1] < LEAST:
      return usual(positions, frequency, amplitude)
    half = positions[..., None] * jnp.asarray(frequency / 2, positions.dtype)
    sin, cos = jnp.sin(half), jnp.cos(half)
    return 2 * sin * cos * amplitude, (cos * cos - sin * sin) * amplitude

  return rotary, 'turns', compute


def attention():
  """Products of queries and keys add backwards."""
  usual = native.attend

  def compute(q, cache, length, block, mask, **more):
    if q.shape[1] >= LEAST:
      q = q[..., ::-1]
      cache, block = ((k[:, :, ::-1], v) for k, v in (cache, block))
    return usual(q, cache, length, block, mask, **more)

  return native, 'attend', compute


def activation():
  usual = native.gated

  def compute(x, activation):
    y = usual(x, activation)
    return jnp.nextafter(y, jnp.inf) if x.shape[1] >= LEAST else y

  return native, 'gated', compute


PLANTED = {
  'layer0/qkv': lambda: product('layer0', 'qkv', 'w'),
  'layer0/keys': positions,
  'layer0/attention': attention,
  'layer0/activation': activation,
  'layer1/out': lambda: product('layer1', 'out', 'w', layer=1),
  'norm': norm,
  'head': head,
}


@pytest.mark.usefixtures('kernel')
@pytest.mark.parametrize(
  'operation', models.slow_unless({*PLANTED} - {'layer1/out'}, PLANTED)
)
def test_a_planted_operation_is_named(operation, monkeypatch):
  monkeypatch.setattr(*PLANTED[operation]())
  both = ways(*form(2 if 'layer1' in operation else 1))
  assert parting.find(both, PROMPT, NEW) == Parting(operation, LEAST)


def test_rows_behind_those_of_tokens_are_not_compared():
  """Two tokens of a text in a pass of eight rows."""
  rows = jnp.arange(8.0)
  block = KV(rows[None, None, None], rows[None, None, :, None])
  given = rows[None, :, None], block, jnp.ones((1, 5, 3))
  found = [(end, x.ravel().tolist()) for end, x in
           parting._row_arrays(given, (1, 2, 8))]  # fmt: skip
  assert found == [('', [0, 1]), ('/keys', [0, 1]), ('/keys', [0, 1])]


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_a_pass_with_more_rows_than_tokens_notes_every_module(platform):
  weights = models.target_weights()

  def noted(model):
    cache = caches.empty(model.config, 1, 128, jnp.float32)
    given = jnp.ones((1, 1), jnp.int32), jnp.array([5]), cache
    notes, _ = parting._pass(weights, *given, target=model, named=True)
    return {name: [x.shape for x in found] for name, found in notes.items()}

  other = variants.for_device(models.TARGET, devices.FORMS[platform])
  assert noted(other) == noted(models.TARGET)


@pytest.mark.usefixtures('kernel')
def test_nothing_parts_where_nothing_is_planted():
  both = ways(*form(), batch=2)
  assert parting.find(both, PROMPT, NEW) == Parting(NOWHERE, None)
  assert parting.find(both[::-1], PROMPT[:1], []) == Parting(NOWHERE, None)


@pytest.mark.usefixtures('kernel')
def test_the_first_block_of_a_text_is_looked_at():
  model, params = form()
  place = len(PROMPT)

  def forward(params, tokens, positions, *args, **more):
    out = model.forward(params, tokens, positions, *args, **more)
    here = (positions == place) & (1 < tokens.shape[1] <= ROWS)
    hidden = jnp.where(
      here[..., None], jnp.nextafter(out.hidden, 9), out.hidden
    )
    return out._replace(hidden=hidden)

  wrong = model._replace(forward=forward)
  both = ways(wrong, params)
  assert parting.find(both, PROMPT, NEW) == Parting('head', 2)
  assert parting.find(both, PROMPT + NEW, TEXT[40:50]).operation == NOWHERE


@given(
  st.integers(1, 12),  # tokens of the prompt
  st.integers(0, 30),  # and behind it
  st.integers(2, 6),  # rows of a block
)
def test_blocks_cover_a_text_without_gaps(prompt, new, rows):
  """From within the prompt to the end, or beyond it for a short prompt."""
  begins = []

  class Walk(parting._Walk):
    """A cache is the number of its tokens, and nothing parts."""

    def read(self, way, length, sources):
      return length - 1

    def in_few(self, begin, cache, named):
      assert cache == begin
      begins.append(begin)
      return {}, begin + rows

    def in_block(self, begin, rows, cache, named):
      return {}

  model = types.SimpleNamespace(config=types.SimpleNamespace(encoder=None))
  both = ways(model, None, rows)
  with mock.patch.object(parting, '_Walk', Walk):
    found = parting.find(both, [1] * prompt, [2] * new)
  assert found == Parting(NOWHERE)
  assert 0 <= begins[0] < prompt
  beyond = begins[-1] + rows - (prompt + new)
  assert 0 <= beyond < rows
  assert beyond == 0 or begins[0] == 0
  assert beyond == 0 or prompt < rows
  assert len(begins) == (begins[-1] - begins[0]) // rows + 1


@pytest.mark.slow
def test_layers_of_passes_of_one_shape_are_told_apart():
  whole, params = made('float32', 'whole')
  model = uniform.uniform(variants.first_layers(whole, 1))
  assert parting.find(ways(model, params), PROMPT, NEW).operation == NOWHERE

  def forward(params, tokens, *args, **more):
    out = model.forward(params, tokens, *args, **more)
    if not LEAST <= tokens.shape[1] <= ROWS:
      return out
    keys, *rest = out.flight
    return out._replace(flight=(keys._replace(v=2 * keys.v), *rest))

  forward.func = model.forward.func  # As `uniform.is_uniform` knows it.
  both = ways(model._replace(forward=forward), params)
  found = parting.find(both, PROMPT, NEW)
  assert found == Parting('layer0/keys', LEAST)


@pytest.mark.usefixtures('kernel')
def test_a_prefill_in_a_batch_that_parts_is_named_last():
  model, params = form()

  def forward(params, tokens, *args, **more):
    out = model.forward(params, tokens, *args, **more)
    if tokens.shape[0] == 1 or tokens.shape[1] <= ROWS:
      return out
    return out._replace(flight=jax.tree.map(lambda x: 2 * x, out.flight))

  both = ways(model._replace(forward=forward), params, batch=2)
  assert parting.find(both, PROMPT, NEW) == Parting('prefill', None)


@pytest.mark.usefixtures('kernel')
def test_no_module_is_named_where_keeping_outputs_changes_the_bits(monkeypatch):
  (model, params), kept, usual = form(), [], nn.intercept_methods

  @contextlib.contextmanager
  def listen(listener):
    kept.append(listener)
    with usual(listener):
      yield
    kept.clear()

  def forward(params, tokens, *args, **more):
    out = model.forward(params, tokens, *args, **more)
    factor = 3 if kept else 2
    wrong = factor if 1 < tokens.shape[1] <= ROWS else 1
    return out._replace(hidden=wrong * out.hidden)

  monkeypatch.setattr(nn, 'intercept_methods', listen)
  both = ways(model._replace(forward=forward), params)
  assert parting.find(both, PROMPT, NEW) == Parting(HIDDEN, None)


@pytest.mark.slow
@pytest.mark.usefixtures('kernel')
def test_a_bug_of_a_text_names_its_operation(monkeypatch):
  """Unless another program wrote the text, or another precision."""
  both, values = ways(*form()), sampling.make(1, 0.0)
  monkeypatch.setattr(*head())
  texts = [*NEW, 1], [*NEW, 2]
  found = ties.explain(both, PROMPT, values, *texts)
  assert (found.verdict, found.operation, found.rows) == ('bug', 'head', LEAST)
  found = ties.explain(both, PROMPT, values, *texts, ours=False)
  assert (found.operation, found.rows) == (None, None)
  copied = both[1]._replace(weights=jax.tree.map(jnp.copy, both[1].weights))
  assert parting.find([both[0], copied], PROMPT, NEW) is None
  assert parting.find(both[:1], PROMPT, NEW) is None


def other_code(model):
  """A model as one of other code, whose last row of a block is wrong."""
  c = model.config
  sizes = Sizes(VOCAB, c.width, c.num_layers, c.num_kv_heads, c.head_dim, 512)

  def forward(params, tokens, *args, **more):
    out = model.forward(params, tokens, *args, **more)
    wrong = out.hidden.at[:, LEAST - 1 :].multiply(2)
    return out._replace(hidden=wrong if tokens.shape[1] <= ROWS else out.hidden)

  def empty(params, batch, slots):
    return caches.empty(c, batch, slots, transformer.dtype_of(params))

  return model._replace(config=sizes, forward=forward, empty=empty)


@pytest.mark.usefixtures('kernel')
def test_of_a_model_of_other_code_no_module_is_named():
  model, params = form()
  both = ways(other_code(model), params)
  assert parting.find(both, PROMPT, NEW) == Parting('the model', LEAST)


@functools.partial(jax.jit, static_argnames='model')
def logits_of(params, tokens, used, cache, *, model):
  mask, offset = transformer.causal(*tokens.shape)
  at = used[:, None] + offset
  out = model.forward(params, tokens, at, cache, used, mask)
  return out.flight, model.head(params, out.hidden)


def part(model, params, dtype):
  """Returns true if logits of a block differ in a bit from single rows'."""
  cache = caches.empty(model.config, 1, SLOTS, dtype)
  tokens, rows = np.array([TEXT[:ROWS]], np.int32), []
  zero = np.zeros(1, np.int32)
  _, block = logits_of(params, tokens, zero, cache, model=model)
  for i in range(ROWS):
    flight, logits = logits_of(
      params, tokens[:, i : i + 1], zero + i, cache, model=model
    )
    cache = caches.commit(cache, flight, zero[:, None], zero + i, zero + 1)
    rows.append(np.asarray(logits[0, 0], float))
  return (np.asarray(block[0], float) != np.array(rows)).any()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('choice', 'dtype'),
  [
    ('none', 'float32'),
    ('one norm', 'bfloat16'),
    ('a state', 'float32'),
    ('latents', 'bfloat16'),
  ],
)
def test_what_is_named_with_products_of_xla_is_in_the_logits(choice, dtype):
  options = models.CHOICES.get(choice, {})
  model = models.tiny(VOCAB, 2, **{'width': 64, 'mlp_width': 160} | options)
  params = jax.tree.map(
    lambda x: x.astype(dtype), jax.jit(model.init)(jax.random.key(0))
  )
  # The text is one block, which begins at its first token.
  found = parting.find(ways(model, params), TEXT[:1], TEXT[1:ROWS])
  assert part(model, params, dtype) == (found.operation != NOWHERE)
  if found.rows is None:
    assert found.operation in (NOWHERE, HIDDEN)
  else:
    assert 2 <= found.rows <= ROWS
