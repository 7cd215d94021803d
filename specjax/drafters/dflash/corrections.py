"""Corrections of a block's logits by the token that was drawn before a place.

A place of a DFlash block does not know what is drawn at the place before it. A
correction tells it, for the price of a small product: the body still runs once
for a block, and q is the distribution given the tokens drawn so far.

  markov    + W2 W1[x], with x the token before (DSpark, Cheng et al.,
            arXiv:2607.05147)
  gated     + W2 (g * W1[x]), with g = sigmoid(G [h, W1[x]]) and h what the
            output layer reads (DSpark)
  rnn       + W2 tanh(o), of a state over the block (DSpark)
  gru       + W2 silu(W1 [h, s]), s of a recurrent layer over the embeddings of
            the tokens from the last committed one on (Domino, as SpecForge
            writes it); the first places may stay as they are
  selector  the likeliest candidates alone, + <P[x] * H h, S[candidate]>
            (DFlash2): other tokens have q = 0

Every module has `prepare(places)`, once for a block, and is called for a place:
with what `prepare` made of it, the tokens before it and a state.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from specjax.models.config import TransformerConfig
from specjax.models.linear import Linear, declare, multiply

MARKOV = 'markov', 'gated', 'rnn'
KINDS = ('', *MARKOV, 'gru', 'selector')


class Places(NamedTuple):
  """The outputs of a head's body at K places, before any correction."""

  logits: jax.Array  # [..., K, V]
  hidden: jax.Array  # [..., K, E] what the output layer read


class Corrected(NamedTuple):
  """A place with the tokens before it, of which there are T each."""

  logits: jax.Array  # [..., T, V]
  state: Any  # [..., T, S] for the place behind it
  token: Any = None  # [..., T, R] what is known of the token before


class Markov(nn.Module):
  """The bias of DSpark; see the module."""

  sizes: Any  # `module.Sizes`
  config: TransformerConfig

  def setup(self):
    s, c = self.sizes, self.config
    shape = c.vocab_size, s.rank
    self.embedding = declare(self, 'embedding', shape, start=1.0)
    # Zeros: training begins with the head that is not corrected.
    shape = s.rank, s.draft_vocab or c.vocab_size
    self.unembedding = declare(self, 'unembedding', shape, start=0.0)
    inputs = c.width + s.rank * (2 if s.correction == 'rnn' else 1)
    made = (3, s.rank) if s.correction == 'rnn' else (s.rank,)
    if s.correction != 'markov':
      self.gate = Linear(inputs, made, bias=True, rows=c.device.rows)

  def prepare(self, places: Places) -> Places:
    return places

  def __call__(self, place: Places, tokens, embedded, state, widen):
    """The place [..., 1, ...] after tokens [..., T]."""
    del embedded  # Unused: it has an embedding of its own.
    known = self.embedding[tokens]
    shape = *tokens.shape, place.hidden.shape[-1]
    hidden = jnp.broadcast_to(place.hidden, shape)
    y = known
    if self.sizes.correction == 'gated':
      y = nn.sigmoid(self.gate(jnp.concatenate([hidden, known], -1))) * known
    if self.sizes.correction == 'rnn':
      made = self.gate(jnp.concatenate([state, known, hidden], -1))
      keep, new, out = (made[..., i, :] for i in range(3))
      keep, y = nn.sigmoid(keep), jnp.tanh(out)
      state = keep * state + (1 - keep) * jnp.tanh(new)
    bias = multiply(y, self.unembedding, self.config.device.rows)
    return Corrected(place.logits + widen(bias), state, known)


class Started(NamedTuple):
  """Places of which the first ones are not corrected."""

  logits: jax.Array  # [..., K, V]
  hidden: jax.Array  # [..., K, E]
  on: jax.Array  # [..., K, 1] 0 where there is no correction


class Prefix(nn.Module):
  """The bias of Domino; see the module."""

  sizes: Any  # `module.Sizes`
  config: TransformerConfig

  def setup(self):
    s, c, rows = self.sizes, self.config, self.config.device.rows
    self.read = Linear(c.width, (3, s.recalled), rows=rows)
    self.recall = Linear(s.recalled, (3, s.recalled), rows=rows)
    self.join = Linear(c.width + s.recalled, (s.rank,), rows=rows)
    shape = s.rank, s.draft_vocab or c.vocab_size
    self.unembedding = declare(self, 'unembedding', shape, start=0.0)

  def prepare(self, places: Places) -> Started:
    shape = *places.hidden.shape[:-1], 1
    on = jnp.arange(shape[-2])[:, None] >= self.sizes.plain
    return Started(*places, jnp.broadcast_to(on, shape))

  def __call__(self, place: Started, tokens, embedded, state, widen):
    """The place [..., 1, ...] after tokens [..., T]."""
    old, new = self.recall(state), self.read(embedded)
    reset, keep = (nn.sigmoid(old[..., i, :] + new[..., i, :]) for i in (0, 1))
    fresh = jnp.tanh(new[..., 2, :] + reset * old[..., 2, :])
    state = keep * state + (1 - keep) * fresh
    shape = *tokens.shape, place.hidden.shape[-1]
    hidden = jnp.broadcast_to(place.hidden, shape)
    y = nn.silu(self.join(jnp.concatenate([hidden, state], -1)))
    bias = multiply(y, self.unembedding, self.config.device.rows)
    logits = place.logits + widen(jnp.where(place.on, bias, 0))
    return Corrected(logits, state)


class Candidates(NamedTuple):
  """The likeliest tokens of places, before any correction."""

  logits: jax.Array  # [..., K, C]
  ids: jax.Array  # [..., K, C]
  read: jax.Array  # [..., K, R] H h
  hidden: jax.Array  # [..., K, E]


class Selector(nn.Module):
  """The choice of DFlash2 among candidates; see the module."""

  sizes: Any  # `module.Sizes`
  config: TransformerConfig

  def setup(self):
    s, c = self.sizes, self.config
    shape, zeros = (c.vocab_size, s.rank), nn.initializers.zeros
    self.before = declare(self, 'before', shape, start=1.0)
    self.after = declare(self, 'after', shape, start=zeros)
    self.read = Linear(c.width, (s.rank,), rows=c.device.rows)

  def prepare(self, places: Places) -> Candidates:
    found = jax.lax.top_k(places.logits, self.sizes.candidates)
    return Candidates(*found, self.read(places.hidden), places.hidden)

  def __call__(self, place: Candidates, tokens, embedded, state, widen):
    """The place [..., 1, ...] after tokens [..., T]."""
    del embedded, widen  # Unused: candidates are tokens of the target.
    read = self.before[tokens] * place.read
    scores = place.logits + jnp.einsum(
      '...r,...cr->...c', read, self.after[place.ids]
    )
    ids = jnp.broadcast_to(place.ids, scores.shape)
    none = jnp.full((*tokens.shape, self.config.vocab_size), -jnp.inf)
    logits = jnp.put_along_axis(
      none.astype(scores.dtype), ids, scores, -1, inplace=False
    )
    return Corrected(logits, state)


def of_kind(sizes: Any, config: TransformerConfig) -> nn.Module:
  """The correction that the sizes of a head name."""
  kinds = {'gru': Prefix, 'selector': Selector}
  return kinds.get(sizes.correction, Markov)(sizes, config)
