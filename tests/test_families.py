"""Every family against transformers: logits, cache, greedy and speculation.

The references are stored (see `make_references`), so none of this needs
torch; `test_families_parity` makes others where it is installed.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from specjax import cache as caches
from specjax import generate, sampling, verify
from specjax.drafters import lm
from specjax.models import checkpoints, reading, transformer
from specjax.models.families import FAMILIES
from specjax.types import Params, Spec
from tests import references

pytestmark = pytest.mark.usefixtures('quick_compilation')

# Of a run; some checkpoints were made for longer texts.
LONGEST = 64
SLOTS = 128
BEGIN = (3, 17)  # tokens of the two known texts that are read at once
# Speculation is the same loop for all. These have what could go wrong in it: a
# window shorter than a draft, both kinds of positions, and experts.
QUICK = ('gemma3_text', 'gpt_neo', 'qwen3_moe')


@functools.partial(jax.jit, static_argnums=(0, 5))
def run(model, params, tokens, length, given, steps):
  """Logits of whole texts, and of each token through the cache.

  Args:
    model: the model.
    params: its parameters.
    tokens: [B, S] of which the last two rows are known texts.
    length: [B] tokens that are read at once, all but the last of them.
    given: [B] tokens that are known; the others are decoded greedily.
    steps: tokens that are fed one by one, from position length - 1 on.

  Returns:
    Logits [2, S, V] of the known texts, [B, steps, V] of the tokens that were
    fed one by one, and all tokens [B, S].
  """
  rows = len(length)
  whole = transformer.score(model, params, tokens[-2:, :LONGEST])
  cache = caches.empty(model.config, rows, SLOTS, jnp.float32)
  cache, _ = reading.prefill(model, params, tokens, length, cache)
  mask = jnp.ones((rows, 1, 1), bool)

  def step(carry, _):
    tokens, cache, used = carry
    fed = jnp.take_along_axis(tokens, used[:, None], 1)
    out = model.forward(params, fed, used[:, None], cache, used, mask)
    cache = caches.commit(cache, out.flight, jnp.zeros((rows, 1), int), used)
    logits = model.head(params, out.hidden[:, 0])
    used += 1
    old = jnp.take_along_axis(tokens, used[:, None], 1)[:, 0]
    new = jnp.where(used < given, old, logits.argmax(-1))
    return (tokens.at[jnp.arange(rows), used].set(new), cache, used), logits

  carry = tokens, cache, length - 1
  (tokens, *_), stepped = jax.lax.scan(step, carry, None, steps)
  return whole, stepped.swapaxes(0, 1), tokens


def assert_agrees(model, params, reference):
  """Logits and greedy texts are those of transformers."""
  # Flat logits would prove nothing.
  assert reference.logits.std() > 0.5
  count = reference.tokens.shape[1]
  texts = [*reference.prompts, *reference.tokens.tolist()]
  lengths = [len(prompt) for prompt in reference.prompts]
  assert len(set(lengths)) == 20
  tokens = np.zeros((len(texts), SLOTS), np.int32)
  for row, text in zip(tokens, texts, strict=True):
    row[: len(text)] = text
  whole, stepped, tokens = run(
    model,
    params,
    tokens,
    jnp.array([*lengths, *BEGIN], jnp.int32),
    jnp.array([*lengths, count, count], jnp.int32),
    count - min(BEGIN) + 1,
  )
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=2e-4)
  close(whole[:, :count], reference.logits)
  for begin, found, expected in zip(
    BEGIN, stepped[-2:], reference.logits, strict=True
  ):
    close(found[: count - begin + 1], expected[begin - 1 :])
  for row, begin, text in zip(
    np.asarray(tokens), lengths, reference.texts, strict=False
  ):
    assert row[begin : begin + references.NEW].tolist() == text


def shorten(model, params):
  """The first layer alone, as a draft."""
  c = model.config
  experts = c.experts and dataclasses.replace(
    c.experts, dense=tuple(i for i in c.experts.dense if i == 0)
  )
  short = dataclasses.replace(
    c, num_layers=1, windows=c.windows[:1], experts=experts
  )
  kept = {name: x for name, x in params.items() if name != 'layer1'}
  return transformer.build(short), kept


def decode(drafter, model, params, draft, prompts):
  """Greedy texts of all prompts together, and the counts."""
  spec = Spec(model, drafter, verify.token)
  params = Params(params, draft)
  count = len(prompts)
  state = generate.start(
    params,
    prompts,
    spec=spec,
    new_tokens=references.NEW,
    key=generate.row_keys(0, range(count)),
    values=sampling.make(count, 0.0),
  )
  state = generate.generate(params, state, references.NEW, spec=spec)
  assert bool(state.finite.all())
  tokens = np.asarray(state.tokens)
  texts = [
    tokens[i, len(p) : len(p) + references.NEW].tolist()
    for i, p in enumerate(prompts)
  ]
  return texts, state.counts


def assert_speculation_agrees(model, params, reference):
  """Over 20 ragged prompts at once it gives the same greedy texts."""
  draft, draft_params = shorten(model, params)
  drafter = lm.make(draft, 3)
  texts, counts = decode(
    drafter, model, params, draft_params, reference.prompts
  )
  assert texts == reference.texts
  # Some drafts were accepted and some were not.
  assert 0 < counts.accepted.sum() < counts.tried.sum()


@pytest.fixture(scope='module', params=FAMILIES)
def loaded(request, tmp_path_factory):
  """A family's stored reference, and what we make of its checkpoint."""
  reference = references.load(request.param)
  path = reference.write(tmp_path_factory.mktemp('family') / request.param)
  return path, reference, *checkpoints.load(path, max_length=LONGEST)


def test_logits_and_greedy_texts_are_those_of_transformers(loaded):
  _, reference, model, params = loaded
  assert_agrees(model, params, reference)


@pytest.mark.parametrize(
  'name',
  [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in FAMILIES
  ],
)
def test_speculation_gives_the_greedy_texts(name, tmp_path):
  reference = references.load(name)
  path = reference.write(tmp_path / name)
  model, params = checkpoints.load(path, max_length=LONGEST)
  assert_speculation_agrees(model, params, reference)


def test_saving_gives_the_same_tensors(loaded, tmp_path):
  """What was read is written back, name by name and bit by bit."""
  _, reference, model, params = loaded
  family = FAMILIES[reference.config['model_type']]
  copy = tmp_path / 'copy'
  checkpoints.save(copy, model, params, dtype=jnp.float16, family=family)
  again, loaded_params = checkpoints.load(copy, max_length=LONGEST)
  assert again is model
  jax.tree.map(np.testing.assert_array_equal, loaded_params, params)
  found = safetensors.numpy.load_file(copy / 'model.safetensors')
  assert found.keys() == reference.tensors.keys()
  for name, tensor in found.items():
    np.testing.assert_array_equal(tensor, reference.tensors[name], name)
