"""EAGLE: a decoder layer that goes on from the target's features.

Li et al., arXiv:2401.15077 (version 1) and arXiv:2503.01840 (version 3); the
module is `eagle.module`. While it drafts, its own features stand in for the
target's; once tokens were accepted, the target's are read instead. Any shape
of draft is possible: chain, static tree, EAGLE-2's dynamic tree
(arXiv:2406.16858). A head with a mask drafts in one pass, see `eagle.at_once`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax.arguments import check_target
from specjax.drafters.eagle import at_once, training
from specjax.drafters.eagle.module import KIND, Head, Sizes, near
from specjax.drafters.heads import masked, modules, overrides
from specjax.drafters.heads.frequencies import Reduction
from specjax.drafters.heads.trainable import Trainable
from specjax.drafters.shapes import parallel, shape
from specjax.drafters.shapes.step_model import Step, Walker
from specjax.models import cache as caches
from specjax.models import reduced_vocab_head, transformer
from specjax.models.config import TransformerConfig, narrowed_to
from specjax.models.transformer import Model
from specjax.types import Cache, LoadedDrafter, Target


class State(NamedTuple):
  """Pair i, of feature i and token i + 1, is slot i of the cache."""

  cache: Cache
  feature: jax.Array  # [B, F] after the last pair
  length: jax.Array  # [B] tokens of the text then


@functools.cache
def walk(head: Head) -> Walker:
  """The walker of a head. Pair i, of feature i and token i + 1, is slot i."""

  def init(params, ctx, hidden, rows):
    cache, feature = head.read_text(params, ctx, hidden)
    flight = caches.empty(head.config, len(feature), rows, hidden.dtype)
    return State(cache, feature, ctx.length + 0), flight

  def start(params, state, block, ctx):
    features = state.feature[:, None]
    return Step(head.logits(params, features), features, block)

  def feed(params, state, block, ctx, row, depth, tokens, features, sees):
    used = ctx.length - 1
    at = used[:, None] + jnp.full(tokens.shape[1], depth - 1)
    # Row 0, the last committed token, is in the cache already.
    sees = sees & (jnp.arange(sees.shape[-1]) > 0)
    features, flight = head.forward(
      params, tokens, features, at, state.cache, used, sees, block, row
    )
    features = features.astype(state.feature.dtype)
    return Step(head.logits(params, features), features, flight)

  def commit(params, state, block, ctx, verdict, hidden):
    del block  # Its features were the head's own.
    batch, rows = verdict.path.shape
    begin = state.length - 1
    at = begin[:, None] + jnp.arange(rows)
    tokens = jnp.take_along_axis(ctx.tokens, at + 1, 1)
    mask, path = transformer.causal(batch, rows)
    features = head.read(params, hidden)
    features, flight = head.forward(
      params, tokens, features, at, state.cache, begin, mask, None, 0
    )
    cache = caches.commit(state.cache, flight, path, begin)
    # Fewer than were accepted where the text ended; none in a finished row.
    new = ctx.length - state.length
    last = features[jnp.arange(batch), jnp.maximum(new - 1, 0)]
    last = last.astype(state.feature.dtype)
    feature = jnp.where(new[:, None] > 0, last, state.feature)
    return State(cache, feature, ctx.length + 0)

  return Walker(init, start, feed, commit, taps=head.sizes.taps)


def trainable(
  target: Model,
  version: int = 3,
  taps: tuple[int, ...] = (),
  start: str = '',
  places: int | None = None,
  keep: float | None = None,
  vocabulary: int = 0,
  frequencies: str = '',
  eos: tuple[int, ...] = (),
  **sizes: Any,
) -> Trainable:
  """A head to train; with a `mask_token`, of P-EAGLE.

  Args:
    target: the target model.
    version: 1 or 3.
    taps: layers that it reads; by default the last for version 1, and the
      first, the middle and the last for version 3.
    start: `target` begins version 3 with the target's own logits, on as many of
      their directions as it is wide (`eagle.training`); by default its
      weights are random.
    places: that P-EAGLE learns of each draft, see `masked.Masks`.
    keep: share of the drafts of a place that have the next one, see there.
    vocabulary: number of tokens that get a logit; 0: all. Only version 3 with
      logits of its own takes it, see `frequencies.Reduction`.
    frequencies: directory of the tables that say how frequent tokens are.
    eos: tokens that end a text; a reduced vocabulary has all of them.
    **sizes: of `eagle.module.Sizes`; with the join `pair` and the width of the
      target, `specjax export` can write the head for others. Embeddings of its
      own begin as the target's where they are as wide; the mask's is learned
      with them, and else the feature of the mask alone.

  Raises:
    ValueError: taps that the target has not, `vocabulary` for a head that
      must learn all tokens, a start that there is not, or masks that no draft
      has.
  """
  if sizes.get('draft_vocab'):
    raise ValueError(
      f'draft_vocab is {sizes["draft_vocab"]}: leave it out, and give the '
      'number of tokens as vocabulary'
    )
  kept = Reduction(vocabulary, frequencies).choose(Target(target, eos=eos))
  if kept is not None:
    masked_too = sizes.get('mask_token') is not None
    if version == 1 or masked_too or sizes.get('own_unembedding') is False:
      raise ValueError(
        f'vocabulary is {vocabulary}, but version 1, P-EAGLE and a head '
        'without own_unembedding learn all tokens: leave it out, or give it '
        'when the trained head is loaded'
      )
    sizes['draft_vocab'] = len(kept)
  layers = target.config.num_layers
  spread = tuple(sorted({0, layers // 2, layers - 1}))
  taps = tuple(taps) or (spread if version == 3 else (layers - 1,))
  if version == 1 and taps != (layers - 1,):
    raise ValueError(
      f'taps {taps}: version 1 reads one layer, the last ({layers - 1}); leave '
      'them out, or use version 3'
    )
  head = Head(target, Sizes(version, taps, **sizes))
  masks = masked.masks_of(
    head.sizes.mask_token, target.config.vocab_size, places, keep
  )
  if start not in ('', 'target'):
    raise ValueError(f"start must be 'target' or empty, got {start!r}")
  if start:
    training.check(head)

  def init(key, target_params):
    fresh = head.init(key)
    if kept is not None:
      entries = target.config.vocab_size
      fresh['places'] = jnp.asarray(reduced_vocab_head.places(kept, entries))
    if head.sizes.own_embedding and head.sizes.width == target.config.width:
      # A copy, as training takes over the weights that it begins with.
      table = jnp.array(target_params['embedding'], jnp.float32)
      fresh = fresh | {'embedding': table}
    if not start:
      return fresh
    return training.from_target(head, fresh, target_params)

  usual = training.tokens if version == 3 else training.features
  return Trainable(
    {'kind': KIND.name, **dataclasses.asdict(head.sizes)},
    taps,
    init,
    functools.partial(at_once.loss, head, masks)
    if masks
    else functools.partial(usual, head),
    lambda depth: shape.build(_walk_to(head, depth), depth, {}),
  )


def _walk_to(head: Head, depth: int) -> Walker:
  """The walker of a head, with or without masks."""
  if head.sizes.mask_token is None:
    return walk(head)
  return at_once.walk(head, depth)


_read = functools.partial(modules.read, KIND)


def load(
  target: Target, path: str, *, window: int = 0, sinks: int = 0, **options: Any
) -> LoadedDrafter:
  """The drafter of a trained or published head, for a target.

  Args:
    target: what is drafted for.
    path: directory of the head, or its name on the Hub.
    window: pairs that it sees of a text at most; 0: all. See
      `models.config.Narrowed`.
    sinks: first pairs that it sees besides.
    **options: of `heads.modules.Options`, `heads.frequencies.Reduction` and
      `shapes.shape.Shape`; `read_as` has values of `Sizes`.

  Raises:
    ValueError: no such head, one for another target, taps that the target
      has not, or no such window.
  """
  check_target(target)
  narrowed = narrowed_to(window, sinks, target.model.config.max_positions)
  read, options = modules.load_head(_read, target, path, options)
  head = dataclasses.replace(read.head, narrowed=narrowed)
  walk_to = functools.partial(_walk_to, head)
  return parallel.load(target, walk_to, read, 0, options)


def _near(read: modules.Read, target: TransformerConfig) -> overrides.Readings:
  sizes = read.head.sizes
  return near(
    sizes, read.stored.sizes, target.num_layers
  ) | overrides.other_positions(sizes.rope_theta, sizes.rope_scaling, target)


alternatives = functools.partial(modules.alternatives, _read, _near)
