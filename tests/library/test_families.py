"""Every family against transformers: logits, cache, greedy and speculation.

The references are stored (see `make_references`), so none of this needs
torch; `test_families_parity` makes others where it is installed.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import checkpoints, sampling, verify
from specjax.drafters import lm
from specjax.models import cache as caches
from specjax.models import prefill, transformer
from specjax.types import Params, Source, Spec
from tests.support import family_outputs, models

# Of a run; some checkpoints were made for longer texts.
LONGEST = 64
SLOTS = 128
# What there are references of.
NAMES = family_outputs.NAMES
BEGIN = (3, 17)  # tokens of the two known texts that are read at once


@functools.partial(jax.jit, static_argnums=(0, 5))
def run(model, params, tokens, length, given, steps, source):
  """Logits of each token through the cache.

  Args:
    model: the model.
    params: its parameters.
    tokens: [B, S] of which the last two rows are known texts.
    length: [B] tokens that are read at once, all but the last of them.
    given: [B] tokens that are known; the others are decoded greedily.
    steps: tokens that are fed one by one, from position length - 1 on.
    source: of each row, where there is an encoder.

  Returns:
    Logits [B, steps, V] of the tokens that were fed one by one, and all tokens
    [B, S].
  """
  rows = len(length)
  cache = transformer.open_cache(model, params, rows, SLOTS, source)
  cache, _ = prefill.prefill(model, params, tokens, length, cache)
  mask = jnp.ones((rows, 1, 1), bool)

  def step(carry, _):
    tokens, cache, used = carry
    fed = jnp.take_along_axis(tokens, used[:, None], 1)
    out = model.forward(params, fed, used[:, None], cache, used, mask)
    root, stay = jnp.zeros((rows, 1), int), jnp.ones(rows, int)
    cache = caches.commit(cache, out.flight, root, used, stay)
    logits = model.head(params, out.hidden[:, 0])
    used += 1
    old = jnp.take_along_axis(tokens, used[:, None], 1)[:, 0]
    new = jnp.where(used < given, old, logits.argmax(-1))
    return (tokens.at[jnp.arange(rows), used].set(new), cache, used), logits

  carry = tokens, cache, length - 1
  (tokens, *_), stepped = jax.lax.scan(step, carry, None, steps)
  return stepped.swapaxes(0, 1), tokens


@pytest.fixture(scope='module', params=NAMES)
def loaded(request, tmp_path_factory):
  """A family's stored reference, and what we make of its checkpoint."""
  reference = family_outputs.load(request.param)
  path = reference.write(tmp_path_factory.mktemp('family') / request.param)
  return path, reference, *checkpoints.load(path, max_length=LONGEST)


def test_logits_and_greedy_texts_are_those_of_transformers(loaded):
  _, reference, model, params = loaded
  # Flat logits would prove nothing.
  assert reference.logits.std() > 0.5
  count = reference.tokens.shape[1]
  assert len({len(prompt) for prompt in reference.prompts}) == 20
  texts, sources = prefill.split(model.config, reference.prompts)
  lengths = [len(text) for text in texts]
  tokens, _ = prefill.pad([*texts, *reference.tokens.tolist()], SLOTS)
  source = None
  if sources is not None:
    source = Source(*prefill.pad([*sources, *reference.sources], 24))
  stepped, written = run(
    model, params, tokens, np.array([*lengths, *BEGIN], np.int32),
    np.array([*lengths, count, count], np.int32), count - min(BEGIN) + 1,
    source,
  )  # fmt: skip
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-4)
  # Without a cache the layers of the others are those of `test_transformer`.
  if model.config.sharing:
    whole = models.score(model, params, tokens[-2:, :count])
    close(whole, reference.logits)
  for begin, found, expected in zip(
    BEGIN, stepped[-2:], reference.logits, strict=True
  ):
    close(found[: count - begin + 1], expected[begin - 1 :])
  for row, begin, text in zip(
    np.asarray(written), lengths, reference.texts, strict=False
  ):
    assert row[begin : begin + family_outputs.NEW].tolist() == text


# Blocks of tokens are checked in `test_transformer`, with trees. These have
# what no model has there, or a state that a rejection must bring back.
@pytest.mark.parametrize(
  'name', models.slow_unless(['t5_v1_1'], ['t5_v1_1', 'lfm2', 'deepseek_v3'])
)
def test_speculation_gives_the_greedy_texts(name, tmp_path):
  reference = family_outputs.load(name)
  path = reference.write(tmp_path / name)
  model, params = checkpoints.load(path, max_length=LONGEST)
  random = np.random.default_rng(0)
  near = jax.tree.map(
    lambda x: x * random.normal(1, 0.2, x.shape).astype(x.dtype),
    jax.device_get(params),
  )
  spec = Spec(model, lm.make(model, 3), verify.token)
  values = sampling.make(len(reference.prompts), 0.0)
  state = models.decoded(
    spec, Params(params, near), reference.prompts, values,
    new_tokens=family_outputs.NEW,
  )  # fmt: skip
  assert state.finite.all()
  assert [*map(list, models.new_tokens(state))] == reference.texts
  # Some drafts were accepted and some were not.
  assert 0 < state.counts.accepted.sum() < state.counts.tried.sum()


def test_saving_gives_the_same_tensors(loaded, tmp_path):
  """What was read is written back, name by name and bit by bit."""
  _, reference, model, params = loaded
  copy = tmp_path / 'copy'
  checkpoints.save(
    copy, model, params, dtype=jnp.float16, attributes=reference.config
  )
  again, loaded_params = checkpoints.load(copy, max_length=LONGEST)
  assert again is model
  jax.tree.map(np.testing.assert_array_equal, loaded_params, params)
  found = safetensors.numpy.load_file(copy / 'model.safetensors')
  assert found.keys() == reference.tensors.keys()
  for name, tensor in found.items():
    np.testing.assert_array_equal(tensor, reference.tensors[name], name)
