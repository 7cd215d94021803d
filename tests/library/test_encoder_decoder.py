"""Encoder-decoders in the loop and in the programs.

That they are what transformers says is tested with the other families.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.bench import ties
from specjax.bench.measure import Decoding
from specjax.drafters import lm, plain
from specjax.loop import generate
from specjax.loop.token_records import Recording
from specjax.models import cache as caches
from specjax.models import encoder_decoder, prefill
from specjax.models.config import Encoder, Relative
from specjax.requests import pool
from specjax.types import Params, Source, Spec
from tests.library import test_drafter_promises as promises
from tests.support import models

OPTIONS = {
  'rope_theta': None,
  'query_scale': 1.0,
  'relative': Relative(8, 6),
  'encoder': Encoder(1, start=3),
}
TARGET = models.tiny(models.VOCAB, 2, **OPTIONS)
DRAFT = models.tiny(models.VOCAB, 1, **OPTIONS)
SEED = 3  # Its greedy texts are lively.
PROMPTS = ((1,), (2, 3, 9), (4, 5, 6) * 9, tuple(range(10)) * 10)
TEMPERATURES = (0.0, 0.0, 1.0, 0.7)
CHAIN = Spec(TARGET, lm.make(DRAFT, 3), verify.token)


def without_a_layer(params):
  """Parameters of an encoder-decoder without the second layer."""
  encoder = {k: x for k, x in params['encoder'].items() if k != 'source1'}
  kept = {k: x for k, x in params.items() if k != 'layer1'}
  return kept | {'encoder': encoder}


def draft_weights():
  return without_a_layer(models.weights(TARGET, SEED))


def decode(spec, draft, temperatures, rows=range(4), steps=99, **options):
  """The state of some of the prompts after some steps, in float64."""
  params = models.double(Params(models.weights(TARGET, SEED), draft))
  values = sampling.make(len(rows), np.asarray(temperatures)[list(rows)])
  state = models.run(
    spec, params, [PROMPTS[i] for i in rows], values, rows, **options
  )
  return generate.generate(params, state, jnp.int32(steps), spec=spec)


def texts_of(spec, draft, temperatures, rows=range(4), **options):
  return models.new_tokens(decode(spec, draft, temperatures, rows, **options))


@pytest.mark.slow
def test_requests_of_a_pool_are_the_rows_of_a_batch(float64):
  """Each has its own source, with other padding; two rows are refilled."""
  expected = texts_of(CHAIN, draft_weights(), TEMPERATURES)
  assert len({*expected}) == 4
  params = models.double(Params(models.weights(TARGET, SEED), draft_weights()))
  options = {'source_slots': 256, 'reads': pool.read_sizes(128), 'group': 2}
  options['recording'] = Recording(logprobs=0)
  found = models.pooled(CHAIN, params, PROMPTS, TEMPERATURES, 40, **options)
  assert [tuple(models.joined(x)) for x in found] == expected
  told = [one for x in found for one in models.joined(x, 'logprobs')]
  assert all(one.value < 0 and not one.top for one in told)


OTHER_DRAFTS = {
  'plain': (plain.make(), verify.token, lambda: None),
  'tree': (
    lm.make_tree(DRAFT, (0, 0, 1, 1, 2, 4)),
    verify.recursive,
    draft_weights,
  ),
  # It never sees the source.
  'decoder alone': (
    lm.make(models.DRAFT, 2),
    verify.token,
    models.draft_weights,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', OTHER_DRAFTS)
def test_greedy_texts_are_the_same_however_drafted(name, float64):
  expected = texts_of(CHAIN, draft_weights(), np.zeros(4))
  assert len({*expected}) == 4
  drafter, rule, draft = OTHER_DRAFTS[name]
  state = decode(Spec(TARGET, drafter, rule), draft(), np.zeros(4))
  assert models.new_tokens(state) == expected
  if name != 'plain':
    accepted = state.counts.accepted.sum()
    assert 0 < accepted < state.counts.tried.sum()


@pytest.mark.slow
def test_a_draft_with_an_encoder_remembers_as_it_reads_again(float64):
  params = models.double(Params(models.weights(TARGET, SEED), draft_weights()))
  values = sampling.make(4, np.asarray(TEMPERATURES))
  state = models.run(CHAIN, params, PROMPTS, values, range(4))
  gaps, accepted = promises.gaps_of_a_run(CHAIN, params, state, steps=6)
  assert max(gaps) < 1e-12
  assert accepted > {0, 1}


def test_what_was_read_of_the_source_is_never_written():
  flight = caches.empty(TARGET.config, 2, 3, jnp.float32)
  sources = caches.empty(TARGET.config, 2, 5, jnp.float32)
  cache = caches.empty(TARGET.config, 2, 128, jnp.float32)
  cache = caches.with_source(cache, sources, jnp.array([5, 2]))
  path = jnp.zeros((2, 2), jnp.int32)
  written = caches.commit(cache, flight, path, jnp.zeros(2, jnp.int32))
  for before, after in zip(cache, written, strict=True):
    assert after.source is before.source
    assert after.source_length is before.source_length
    assert after.k is not before.k


def test_distances_share_buckets():
  """The example of the docstring, and both sides of a query."""
  found = encoder_decoder.bucket_distances(Relative(8, 20), False)
  expected = [0, 1, 2, 3, 4, 4, 5, 5, 5, *[6] * 5, *[7] * 7]
  assert found.tolist() == expected
  found = encoder_decoder.bucket_distances(Relative(8, 5), True)
  # Later tokens on the left: they have the upper half of the buckets.
  assert found.tolist() == [7, 7, 6, 6, 5, 0, 1, 2, 2, 3, 3]


@pytest.mark.parity
@pytest.mark.parametrize('sizes', [(32, 128), (8, 12), (8, 20), (64, 500)])
@pytest.mark.parametrize('both_sides', [False, True])
def test_buckets_are_those_of_transformers(sizes, both_sides):
  torch = pytest.importorskip('torch')
  attention = pytest.importorskip('transformers.models.t5.modeling_t5')
  buckets, longest = sizes
  distance = np.arange(-longest if both_sides else 0, longest + 1)
  expected = attention.T5Attention._relative_position_bucket(
    torch.tensor(-distance), both_sides, buckets, longest
  )
  found = encoder_decoder.bucket_distances(Relative(*sizes), both_sides)
  np.testing.assert_array_equal(found, expected)


def test_differences_are_explained_with_the_source():
  params = models.weights(TARGET, SEED)
  spec = Spec(TARGET, plain.make(), verify.token)
  ways = [ties.way(Decoding(spec, Params(params, None)), 1, 128)]
  source = Source(*prefill.pad(PROMPTS[2:3], 128))
  start = jnp.full((1, 1), OPTIONS['encoder'].start)
  logits = np.asarray(models.score(TARGET, params, start, source))[0, 0]
  best, second = np.argsort(-logits)[:2].tolist()
  values = sampling.make(1, 0.0)
  found = ties.explain(ways, PROMPTS[2], values, [best], [second])
  assert found.verdict == 'bug'
  gap = float(logits[best] - logits[second])
  assert found.gap == pytest.approx(gap, abs=1e-5)


# What is refused


def test_an_encoder_without_a_source_is_refused():
  spec = Spec(models.TARGET, lm.make(DRAFT, 3), verify.token)
  params = Params(models.target_weights(), draft_weights())
  with pytest.raises(ValueError, match='for an encoder-decoder target only'):
    models.run(spec, params, PROMPTS[:1], sampling.make(1))


@pytest.mark.parametrize('options', [{'windows': (3, 3)}, {'parallel': True}])
def test_options_of_other_decoders_are_refused(options):
  with pytest.raises(ValueError, match='neither parallel layers nor windows'):
    models.tiny(models.VOCAB, 2, **OPTIONS | options)
