"""A small transformer of plain arrays, as other code would write it.

It comes through both doors of `models.own`, and with bugs that a model of other
code may have. Nothing of specjax's own models is in it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax import checkpoints, pair

VOCAB, WIDTH, LAYERS, POSITIONS = 61, 32, 2, 256
SIZES = specjax.Sizes(VOCAB, WIDTH, LAYERS, 1, WIDTH, POSITIONS)


@functools.partial(jax.jit, static_argnames=('vocab', 'width', 'layers'))
def weights(seed=0, vocab=VOCAB, width=WIDTH, layers=LAYERS):
  keys = iter(jax.random.split(jax.random.key(seed), 6))

  def normal(*shape, scale=0.3):
    return scale * jax.random.normal(next(keys), shape)

  return {
    'embedding': normal(vocab, width, scale=1.0),
    'positions': normal(POSITIONS, width, scale=1.0),
    'qkv': normal(layers, width, 3 * width),
    'out': normal(layers, width, width),
    'up': normal(layers, width, 2 * width),
    'down': normal(layers, 2 * width, width),
  }


def norm(x):
  return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def run(params, tokens, positions, attend):
  """The transformer; attend(layer, q, k, v) mixes the tokens of a layer."""
  x = params['embedding'][tokens] + params['positions'][positions]
  outputs = []
  for i in range(len(params['qkv'])):
    q, k, v = jnp.split(norm(x) @ params['qkv'][i], 3, -1)
    x = x + attend(i, q, k, v) @ params['out'][i]
    x = x + jax.nn.silu(norm(x) @ params['up'][i]) @ params['down'][i]
    outputs.append(x)
  return norm(x), outputs


def mix(q, k, v, mask):
  scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
  return jax.nn.softmax(jnp.where(mask, scores, -1e30)) @ v


@jax.jit
def whole(params, tokens):
  """Logits [T, V] of a text, without any cache."""
  mask = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
  x, _ = run(
    params,
    tokens,
    jnp.arange(len(tokens)),
    lambda i, q, k, v: mix(q, k, v, mask),
  )
  return x @ params['embedding'].T


def greedy(params, prompt, new_tokens, eos=()):
  """The text of plain greedy decoding, each token from a pass over all."""
  text = np.zeros(POSITIONS, np.int32)
  text[: len(prompt)] = prompt
  end = len(prompt)
  while end < len(prompt) + new_tokens:
    text[end] = int(whole(params, text)[end - 1].argmax())
    end += 1
    if text[end - 1] in eos:
      break
  return text[len(prompt) : end].tolist()


def cache_functions(bug=''):
  """`open_cache` and `apply` of the model, with a bug by name."""

  def open_cache(params, slots):
    layers, width = len(params['qkv']), params['embedding'].shape[1]
    empty = jnp.zeros((1, slots, width), params['embedding'].dtype)
    if bug == 'no slots':
      empty = empty[:, :1]
    return [
      {'k': empty, 'v': empty, 'end': jnp.int32(0)} for _ in range(layers)
    ]

  def apply(params, tokens, positions, cache, mask, end):
    count = tokens.shape[1]
    if bug == 'mask':
      mask = jnp.arange(mask.shape[2]) <= end + jnp.arange(count)[:, None]
    if bug == 'positions':
      positions = end + jnp.arange(count)[None]
    if bug == 'length':
      mask |= jnp.arange(mask.shape[2]) > end + 8
    if bug == 'cursor':  # Of its own, which nobody takes back.
      end = cache[0]['end']
    new = []

    def attend(i, q, k, v):
      put = functools.partial(
        jax.lax.dynamic_update_slice_in_dim, start_index=end, axis=1
      )
      k, v = put(cache[i]['k'], k), put(cache[i]['v'], v)
      new.append({'k': k, 'v': v, 'end': end + count})
      return mix(q, k, v, mask)

    x, _ = run(params, tokens, positions, attend)
    logits = x @ params['embedding'].T
    if bug == 'logits':
      logits = logits.astype(jnp.bfloat16)
    if bug == 'shape':
      new = [{**layer, 'k': layer['k'][:, :-1]} for layer in new]
    if bug == 'type':
      new = [{**layer, 'v': layer['v'].astype(jnp.float16)} for layer in new]
    return logits, new

  return open_cache, apply


@functools.cache
def adapted(bug='', vocab=VOCAB):
  return specjax.adapt(
    *cache_functions(bug), vocab_size=vocab, max_positions=POSITIONS
  )


@functools.cache
def full(bug=''):
  """The model with its cache in the hands of the loop."""

  def forward(
    params, tokens, positions, cache, length, mask, flight=None, at=0, taps=()
  ):
    rows = []
    if bug == 'batch':
      params = params | {'out': params['out'] * (1 + 0.1 * len(tokens))}
    if bug == 'ragged' and length is not None:
      length = jnp.full_like(length, length.max())

    def attend(i, q, k, v):
      new = specjax.KV(k.swapaxes(1, 2)[:, None], v[:, None])
      if flight is not None:
        keys, values = (
          jax.lax.dynamic_update_slice_in_dim(old, x, at, axis)
          for old, x, axis in zip(flight[i], new, (3, 2), strict=True)
        )
        new = specjax.KV(keys, values)
        if bug == 'flight':
          new = flight[i]
      rows.append(new)
      keys, values, sees = new.k[:, 0].swapaxes(1, 2), new.v[:, 0], mask
      if cache is not None:
        slots = cache[i].v.shape[2]
        before = jnp.arange(slots) < length[:, None, None]
        if bug == 'length':
          before = before | True
        before = jnp.broadcast_to(before, (*tokens.shape, slots))
        keys = jnp.concatenate([cache[i].k[:, 0].swapaxes(1, 2), keys], 1)
        values = jnp.concatenate([cache[i].v[:, 0], values], 1)
        sees = jnp.concatenate([before, mask], 2)
        if bug == 'writes':
          rows[-1] = specjax.KV(keys.swapaxes(1, 2)[:, None], values[:, None])
      return mix(q, keys, values, sees)

    x, outputs = run(params, tokens, positions, attend)
    tapped = [outputs[i] for i in taps]
    shape = (*x.shape[:2], 0, x.shape[2])
    tapped = jnp.stack(tapped, 2) if tapped else jnp.zeros(shape)
    if bug == 'taps':
      tapped = jnp.zeros(shape)
    return specjax.Output(x, tapped, tuple(rows))

  def head(params, hidden):
    logits = hidden @ params['embedding'].T
    return logits[..., :-1] if bug == 'head' else logits

  sizes = SIZES
  if bug == 'layers':
    sizes = specjax.Sizes(VOCAB, WIDTH, LAYERS + 1, 1, WIDTH, POSITIONS)
  return specjax.Model(sizes, weights, forward, head)


def load(layers=LAYERS):
  """A target of the embedded pair's tokens, for programs."""
  tokenizer = checkpoints.load_tokenizer(pair.path('target'))
  params = weights(vocab=2048, layers=layers)
  return specjax.Target.of(
    adapted(vocab=2048), params, tokenizer=tokenizer, eos=(0,)
  )


def load_draft():
  """A smaller one of the same tokens."""
  return load(layers=1)


def fails():
  raise RuntimeError('no weights here')


def ours():
  return specjax.load(pair.path('draft-128'))
