"""Tiny models and drafters that the tests share.

Equal arguments give the same object, so that two tests that run the same thing
run one compiled program.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling, verify
from specjax.checkpoints import vocabularies
from specjax.checkpoints.vocabularies import reading
from specjax.drafters import (
  assistant,
  cascade,
  counts,
  dflash,
  eagle,
  early_exit,
  lm,
  medusa,
  ngram,
  pard,
  plain,
  recycling,
  skip,
  suffix,
  windowed,
)
from specjax.drafters.dflash import module
from specjax.drafters.eagle.module import Head, Sizes
from specjax.drafters.ngram import retrieval
from specjax.drafters.shapes import chain, dynamic_tree, policies, static_tree
from specjax.loop import generate
from specjax.models import linear, low_bits, transformer, variants
from specjax.models.config import (
  Experts,
  GatedDelta,
  Latent,
  Mamba2,
  Narrowed,
  Sharing,
  ShortConv,
)
from specjax.requests import pool, request_sampling
from specjax.types import Drafter, Params, Spec
from tests.support import tiny as builder


@functools.cache
def tiny(vocab: int, layers: int, **options) -> transformer.Model:
  """A decoder of width 8 with grouped queries."""
  sizes = {'width': 8, 'head_dim': 4, 'mlp_width': 16, 'max_positions': 512}
  return builder.model(layers=layers, vocab=vocab, **sizes | options)


# Choices of the decoder that exclude one another come in two models.
CHOICES = {
  'normed behind': dict(
    windows=(4, None),
    unturned=(1,),
    pre_norms=False,
    post_norms=True,
    qk_norm=True,
    qk_norm_whole=True,
    residual_scale=0.6,
    sink_logits=True,
    recurrent=Mamba2(
      (0, 1), 2, 4, 4, 6, kernel=3, bias=True, out_bias=True, norm=False,
      scales=(1.4, 0.9, 1.1, 0.7, 1.3, 0.6, 0.8),
    ),
    state_beside=True,
    attention_scales=(1.3, 0.7),
    mlp_scales=(1.2, 0.6),
  ),
  'one norm': dict(
    layer_norm=True,
    norm_bias=False,
    parallel=True,
    one_norm=True,
    qk_norm=True,
    qk_norm_last=True,
    rotary_dim=2,
    rotary_apart=True,
    query_growth=(0.5, 3),
    head_bias=True,
  ),
  'a state': dict(
    recurrent=GatedDelta((0,), 2, 4, 4, 6, kernel=4),
    attention_gate=True,
    qk_norm=True,
    norm_plus_one=True,
    experts=Experts(count=3, chosen=2, width=12, dense=(1,), shared=8),
  ),
  'latents': dict(
    recurrent=ShortConv((0,), 8, kernel=3, bias=True),
    latent=Latent(rank=6, turned=2, keys=4, values=3, queries=5),
    rotary_dim=2,
    experts=Experts(
      count=6, chosen=2, width=12, dense=(0,), shared=8, shared_gate=False,
      sigmoid=True, groups=3, best_groups=2, scale=1.5,
    ),
  ),
}  # fmt: skip


@functools.cache
def weights(model: transformer.Model, seed: int):
  """Random weights, float32, of a model that is sure enough of itself."""
  with jax.enable_x64(False):  # Whoever asks first, and in what precision.
    params = jax.jit(model.init)(jax.random.key(seed))
    if isinstance(params, dict):
      params['unembedding'] *= 2
  return params


def random_of(init, *given):
  """Random numbers in the shapes that an `init` makes: nothing is compiled."""
  random = np.random.default_rng(0)
  return jax.tree.map(
    lambda x: random.normal(size=x.shape).astype(x.dtype),
    jax.eval_shape(init, *given),
  )


@functools.cache
def near(model: transformer.Model, seed: int, mix: float = 0.3):
  """Weights that make a good draft for those of the same seed."""
  both = weights(model, seed), weights(model, seed + 1)
  return jax.tree.map(
    lambda a, b: jnp.asarray(a + np.float32(mix) * (b - a)),
    *jax.device_get(both),
  )


@jax.jit
def dequantize(params):
  """Parameters with all matrices as floats again, whole."""

  def one(path, w):
    if isinstance(w, linear.Table):
      return low_bits.widen(w.head).T
    if not isinstance(w, low_bits.LowBits):
      return w
    experts = path[-1].key in linear.OF_EXPERTS and w.words.ndim > 2
    return jax.vmap(low_bits.widen)(w) if experts else low_bits.widen(w)

  return jax.tree_util.tree_map_with_path(one, params, is_leaf=linear.is_weight)


def double(params):
  """The same weights in float64; for use where float64 is enabled."""
  return jax.tree.map(
    lambda x: x.astype(np.float64) if x.dtype == np.float32 else x,
    jax.device_get(params),
  )


def run(
  spec: Spec, params: Params, prompts, values, indices=None, seed=0, **options
):
  """The state after reading the prompts; indices [B] choose the keys."""
  rows = range(len(prompts)) if indices is None else indices
  key = generate.row_keys(seed, rows)
  options = {'new_tokens': 40} | options
  return generate.start(
    params, prompts, spec=spec, key=key, values=values, **options
  )


def decoded(spec: Spec, params: Params, prompts, values, **options):
  """The state of `run` at its end."""
  state = run(spec, params, prompts, values, **options)
  return generate.generate(params, state, jnp.int32(999), spec=spec)


def refused(message: str, call, *given) -> None:
  """Asserts that a call is refused, in one line."""
  with pytest.raises(ValueError, match=message) as error:
    call(*given)
  assert '\n' not in str(error.value)


def new_tokens(state) -> list[tuple[int, ...]]:
  """The new tokens of each row."""
  tokens, start, length = jax.device_get(
    (state.tokens, state.start, state.length)
  )
  return [
    tuple(row[a:b].tolist())
    for row, a, b in zip(tokens, start, length, strict=True)
  ]


def finish(held, steps=2, found=None):
  """Turns of a pool until nothing is left: the progress of each request."""
  found = {} if found is None else found
  while held.live or held.waiting:
    for one in held.turn(steps):
      found.setdefault(one.id, []).append(one)
  return found


def joined(progress, name='tokens'):
  """What came of a request, one field of all its progress."""
  return [x for one in progress for x in getattr(one, name)]


def texts_of(held, steps=2):
  """The tokens of each request of a pool, which is run to its end."""
  return {n: joined(x) for n, x in finish(held, steps).items()}


def pooled(spec, params, prompts, temperatures, new_tokens, **options):
  """The progress of each prompt, whose requests share two rows of a pool."""
  stages = request_sampling.of(spec)
  given = {'spec': spec, 'values': stages.values(), 'rows': 2, 'slots': 128}
  held = pool.Pool(params, **given | options)
  for i, prompt in enumerate(prompts):
    values = stages.values(temperature=temperatures[i])
    key = generate.row_keys(0, [i])
    held.submit(pool.Request(prompt, new_tokens, key, values))
  found = finish(held)
  return [found[i] for i in range(len(prompts))]


@jax.jit
def copy(state):
  """A state that survives the donation of the other."""
  return jax.tree.map(jnp.copy, state)


# Logits of whole texts, at once and without a cache.
score = jax.jit(transformer.score, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 3))
def see(model, params, tokens, taps):
  """The output of a pass over whole texts [B, T], with features of layers."""
  mask, at = transformer.causal(*tokens.shape)
  return model.forward(params, tokens, at, None, None, mask, taps=taps)


def without_cache(model, params, prompt, count):
  """Logits [V] after a prompt and every text of up to `count` tokens on top.

  By full forward passes in float64, without any cache.
  """
  vocab = model.config.vocab_size
  texts = [
    text
    for length in range(count + 1)
    for text in itertools.product(range(vocab), repeat=length)
  ]
  padded = np.zeros((len(texts), 16), np.int32)
  for row, text in zip(padded, texts, strict=True):
    row[: len(prompt) + len(text)] = *prompt, *text
  with jax.enable_x64(True):
    logits = np.asarray(score(model, double(params), padded))
  return {
    text: row[len(prompt) + len(text) - 1]
    for text, row in zip(texts, logits, strict=True)
  }


# The pair of most tests. The draft is the first layer of the target: its
# drafts are accepted neither always nor never.
VOCAB = 11
TARGET = tiny(VOCAB, 2)
DRAFT = tiny(VOCAB, 1)
DEPTH = 4


def target_weights():
  return weights(TARGET, 5)  # Its greedy texts are lively.


def draft_weights():
  params = target_weights()
  return {name: params[name] for name in params if name != 'layer1'}


# A draft of which one layer has a state.
STATES = tiny(VOCAB, 2, recurrent=GatedDelta((0,), 2, 4, 4, 6, kernel=3))


def states_weights():
  shared = ('embedding', 'unembedding', 'norm')
  own = weights(STATES, 5)
  return own | {name: target_weights()[name] for name in shared if name in own}


KEPT = np.array([0, 2, 3, 4, 7, 9])
SMALL_HEAD = variants.keep_tokens(DRAFT, draft_weights(), KEPT)[0]


def small_head_weights():
  return variants.keep_tokens(DRAFT, draft_weights(), KEPT)[1]


def cascade_weights():
  """Of a draft, and of one of the same shape that drafts for it."""
  params = draft_weights()
  other = weights(DRAFT, 6)
  mixed = jax.tree.map(lambda a, b: a + 0.2 * (b - a), params, other)
  return Params(params, mixed)


def tables(vocab: int) -> counts.Tables:
  """Counts of a text in which not every token occurs."""
  text = np.random.default_rng(0).integers(0, vocab - 1, 300)
  return counts.count([text], vocab, successors=4)


# Two vocabularies: the draft has eight of the target's letters in another order
# and its end of text, lacks two pairs, and has a token of its own.
LETTERS = [bytes([97 + i]) for i in range(8)]
TARGET_TOKENS = vocabularies.tokens.Tokens(
  VOCAB, dict(enumerate([*LETTERS, b'ab', b'cde'])), special={10: 'end'},
  ends=(10,),
)  # fmt: skip
DRAFT_TOKENS = vocabularies.tokens.Tokens(
  10, dict(enumerate([*LETTERS[::-1], b'zz'])), special={9: '</s>'}, ends=(9,)
)
OTHER_TABLES, _ = vocabularies.tables.build(TARGET_TOKENS, DRAFT_TOKENS)
OTHER_DRAFT = tiny(10, 1)
# Room for fewer pieces than some texts have.
TIGHT = reading.Sizes(3, 1, 2)
# Rows of the draft's embedding in the target's.
_ROWS = np.array([*range(8)[::-1], 9, 10])


def in_other_tokens(params) -> reading.Spelled:
  """Weights of a draft of the target's tokens as one of its own has them."""
  moved = {
    'embedding': params['embedding'][_ROWS],
    'unembedding': params['unembedding'][:, _ROWS],
  }
  return reading.Spelled(params | moved, OTHER_TABLES)


def other_walker(sizes: reading.Sizes | None = None):
  sizes = sizes or reading.sizes_of(OTHER_TABLES)
  return lm.walk(OTHER_DRAFT, reading.other(sizes))


def cascade_of_two_vocabularies() -> Params:
  own = cascade_weights()
  return Params(own.target, in_other_tokens(own.drafter))


def reference_text(vocab: int) -> retrieval.Corpus:
  """A random text to look up in, without the last token."""
  text = np.random.default_rng(1).integers(0, vocab - 1, 300)
  return retrieval.build(text)


def head_weights(init, scale: float = 1.0):
  """Random weights of a head, made anew whatever the precision in force."""
  with jax.enable_x64(False):
    made = jax.jit(init)(jax.random.key(3), target_weights())
    noisy = jax.tree.map(
      lambda x: (
        x + np.float32(scale) * _noise(x.shape) if x.dtype == np.float32 else x
      ),
      jax.device_get(made),
    )
    return jax.device_put(noisy)


@functools.cache
def _noise(shape):
  return np.asarray(jax.random.normal(jax.random.key(4), shape))


def head_of(trainable, scale: float):
  return functools.cache(lambda: head_weights(trainable.init, scale))


def module_of(head):
  """Weights of a head that begins with none of its target's."""
  return functools.cache(
    lambda: head_weights(lambda key, target: head.init(key), 0.3)
  )


SMALL = {'width': 8, 'num_heads': 2, 'num_kv_heads': 1, 'head_dim': 4}
EAGLE_1 = eagle.trainable(TARGET, 1, **SMALL, mlp_width=16)
EAGLE_3 = eagle.trainable(TARGET, 3, **SMALL, mlp_width=16)
MEDUSA = medusa.trainable(TARGET, 3)
EXIT = early_exit.trainable(TARGET, 1, 2)
DFLASH_SIZES = {k: v for k, v in SMALL.items() if k != 'width'}
DFLASH_SIZES |= {'block': 5, 'mlp_width': 16}
DFLASH = dflash.trainable(TARGET, **DFLASH_SIZES)
DFLASH_HEAD = module.Head(TARGET, module.Sizes(DFLASH.taps, **DFLASH_SIZES))
# A block whose places know the tokens before them.
SPARK_SIZES = DFLASH_SIZES | {
  'correction': 'rnn', 'rank': 3, 'confidence': 'token', 'anchored': True
}  # fmt: skip
DOMINO_SIZES = DFLASH_SIZES | {
  'correction': 'gru', 'rank': 3, 'recalled': 2, 'plain': 1
}  # fmt: skip
DFLASH2_SIZES = DFLASH_SIZES | {
  'correction': 'selector', 'rank': 3, 'candidates': 4, 'conv': 2,
  'conv_group': 4, 'windows': (6, None),
}  # fmt: skip
SPARK, DOMINO, DFLASH2 = (
  dflash.trainable(TARGET, **sizes)
  for sizes in (SPARK_SIZES, DOMINO_SIZES, DFLASH2_SIZES)
)
SPARK_HEAD, DOMINO_HEAD, DFLASH2_HEAD = (
  module.Head(TARGET, module.Sizes(DFLASH.taps, **sizes))
  for sizes in (SPARK_SIZES, DOMINO_SIZES, DFLASH2_SIZES)
)
EAGLE_3_HEAD = Head(TARGET, Sizes(3, EAGLE_3.taps, **SMALL, mlp_width=16))
EAGLE_3_WALKER = eagle.walk(EAGLE_3_HEAD)
NARROWED = Narrowed(window=6, sinks=2)

# It reads the target's cache; its layers are a narrower target's.
ASSISTANT = assistant.Head(
  TARGET,
  assistant.Assistant(
    dataclasses.replace(TARGET.config, width=8, sharing=Sharing(0, 16)),
    TARGET.config.width,
  ),
)

# A head in the layout of others, which drafts all places at once.
AT_ONCE = Head(
  TARGET,
  Sizes(
    3, (0, 1), **SMALL, mlp_width=16, join='pair', draft_vocab=6, layers=2,
    norms=('token', 'feature', 'last', 'residual', 'taps', 'carried'),
    mask_token=3,
  ),
)  # fmt: skip


# A drafter of each kind. A new one is added here: promises are tested of it.
DRAFTERS: dict[str, tuple[Drafter, object]] = {
  'plain': (plain.make(), lambda: None),
  'lm': (lm.make(DRAFT, DEPTH), draft_weights),
  'lm with a stop': (
    lm.make(DRAFT, DEPTH, policies.confidence(0.3)), draft_weights,
  ),
  'tree': (lm.make_tree(DRAFT, (0, 0, 0, 1, 1, 2, 5)), draft_weights),
  'chains in eight bits': (
    lm.make_tree(DRAFT, (0, 0, 0, 1, 2, 3), True),
    lambda: linear.quantize(draft_weights(), DRAFT.config.tied_embeddings),
  ),
  'ngram': (ngram.make(3), lambda: None),
  'suffix, tree': (
    suffix.make(2, factor=2.0, candidates=2, places=4),
    lambda: None,
  ),
  'recycling': (recycling.make(TARGET, 3, 3, 3), lambda: None),
  'recycling, tree': (recycling.make(TARGET, 3, 3, 7), lambda: None),
  'skip': (chain.make(skip.walk(TARGET, (1,), (0,)), DEPTH), lambda: None),
  'counts': (counts.make(2), lambda: tables(VOCAB)),
  'lm, bandit': (
    lm.make(DRAFT, DEPTH, policies.bandit(0.1, 0.1, 1, 2)), draft_weights,
  ),
  'medusa, tree': (
    static_tree.make(medusa.walk(TARGET), (0, 0, 1, 1, 2, 3)),
    head_of(MEDUSA, 0.3),
  ),
  'early exit': (EXIT.drafter(DEPTH), head_of(EXIT, 0.1)),
  'windowed': (chain.make(windowed.walk(TARGET, 6, 2), DEPTH), lambda: None),
  'dflash': (DFLASH.drafter(DEPTH), head_of(DFLASH, 0.3)),
  'dspark': (
    chain.make(dflash.walk(SPARK_HEAD, 4), DEPTH, policies.confidence(0.5)),
    head_of(SPARK, 0.3),
  ),
  'dspark, dynamic tree': (
    dynamic_tree.make(dflash.walk(SPARK_HEAD, 3), 3, 2, 6),
    head_of(SPARK, 0.3),
  ),
  'domino, tree': (
    static_tree.make(dflash.walk(DOMINO_HEAD, 4), (0, 0, 1, 1, 2, 3)),
    head_of(DOMINO, 0.3),
  ),
  'dflash2': (DFLASH2.drafter(DEPTH), head_of(DFLASH2, 0.3)),
  'eagle 1': (EAGLE_1.drafter(DEPTH), head_of(EAGLE_1, 0.3)),
  'eagle 3, tree': (
    static_tree.make(EAGLE_3_WALKER, (0, 0, 0, 1, 1, 2, 5)),
    head_of(EAGLE_3, 0.3),
  ),
  'eagle 3, windowed': (
    chain.make(
      eagle.walk(dataclasses.replace(EAGLE_3_HEAD, narrowed=NARROWED)), DEPTH,
    ),
    head_of(EAGLE_3, 0.3),
  ),
  'eagle 3, dynamic tree': (
    dynamic_tree.make(EAGLE_3_WALKER, 3, 3, 8),
    head_of(EAGLE_3, 0.3),
  ),
  'pard over states': (
    chain.make(pard.walk(STATES, 3, DEPTH), DEPTH), states_weights,
  ),
  'eagle at once, dynamic tree': (
    dynamic_tree.make(eagle.at_once.walk(AT_ONCE, 3), 3, 3, 8),
    module_of(AT_ONCE),
  ),
  'assistant, tree': (
    static_tree.make(assistant.walk(ASSISTANT), (0, 0, 0, 1, 1, 2, 5)),
    module_of(ASSISTANT),
  ),
  'states, tree': (lm.make_tree(STATES, (0, 0, 0, 1, 1, 2, 5)), states_weights),
  'some tokens': (lm.make(SMALL_HEAD, DEPTH), small_head_weights),
  'another vocabulary': (
    chain.make(other_walker(), DEPTH),
    lambda: in_other_tokens(draft_weights()),
  ),
  'another vocabulary, tree': (
    static_tree.make(other_walker(TIGHT), (0, 0, 0, 1, 1, 2, 5)),
    lambda: in_other_tokens(draft_weights()),
  ),
  'cascade over another vocabulary': (
    cascade.make(DRAFT, chain.make(other_walker(), 2), 3),
    cascade_of_two_vocabularies,
  ),
  'cascade': (cascade.make(DRAFT, lm.make(DRAFT, 2), 3), cascade_weights),
  'cascade over a window': (
    cascade.make(
      variants.narrow(TARGET, 6, 2), lm.make(DRAFT, 2), 3, shares=True,
    ),
    draft_weights,
  ),
}  # fmt: skip


def slow_unless(fast, names):
  """Names to test, of which those that are not `fast` are slow."""
  return [
    name if name in fast else pytest.param(name, marks=pytest.mark.slow)
    for name in names
  ]


# Rows of every kind: one token, greedy, sampled, long, repetitive.
PROMPTS = (
  (1,), (2, 3), (7,), (4, 5, 6, 4, 5, 6, 4, 5), tuple(range(10)) * 2,
  (9, 8) * 30,
)  # fmt: skip
TEMPERATURES = (0.0, 0.0, 1.0, 0.7, 1.0, 1.3)


def spec_of(name: str, eos=(10,)) -> Spec:
  drafter = DRAFTERS[name][0]
  chain = drafter.nodes == drafter.depth
  rule = verify.token if chain else verify.recursive
  return Spec(TARGET, drafter, rule, eos)


def params_of(name: str) -> Params:
  """Weights of the pair; float64 where that is enabled."""
  params = Params(target_weights(), DRAFTERS[name][1]())
  return double(params) if jax.config.jax_enable_x64 else params


def begin(
  name, temperature=TEMPERATURES, prompts=PROMPTS, eos=(10,), **options
):
  """The usual rows, read by the usual pair."""
  values = sampling.make(max(1, len(prompts)), np.asarray(temperature))
  spec = spec_of(name, eos)
  return run(spec, params_of(name), prompts, values, **options)


def go(name, state, steps=1000, eos=(10,)):
  """Runs a state of `begin`, which is donated."""
  steps = jnp.int32(steps)
  return generate.generate(
    params_of(name), state, steps, spec=spec_of(name, eos)
  )
