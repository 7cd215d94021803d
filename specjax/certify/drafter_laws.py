"""What every drafter promises, as measures of its drafts.

An exact rule hides every bug of a drafter but that of its probabilities: the
text stays right and only the acceptance falls, and acceptance is what is
reported. So drafts themselves are looked at, by the certificate of a drafter
and by the tests of those of the library.
"""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.drafters.shapes.step_model import Memory
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.models import prefill
from specjax.stats import fit_tests
from specjax.stats.fit_tests import Fit
from specjax.types import Context, Draft, Drafter, Params, Verdict

_GROUPS = 4  # of an earlier token, by the rank of its probability


def random_texts(rows: int, vocab: int, slots: int = 128):
  """Random texts of 1 to 12 tokens: tokens [rows, slots] and length."""
  random = np.random.default_rng(0)
  length = random.integers(1, 13, rows).astype(np.int32)
  length[:2] = 1, 2
  tokens = random.integers(0, vocab, (rows, slots)).astype(np.int32)
  return np.where(np.arange(slots) < length[:, None], tokens, 0), length


def precision():
  return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32


@functools.partial(jax.jit, static_argnames=('drafter', 'target'))
def read(drafter, params, tokens, length, values, source=None, *, target):
  """A context of texts, and the memory of having read them."""
  cache = hidden = None
  if params.target is not None:
    cache = caches.empty(target.config, *tokens.shape, precision())
    cache, hidden = prefill.prefill(
      target, params.target, tokens, length, cache, drafter.taps
    )
  ctx = Context(tokens, length, cache, values, sampling.History(), source)
  return ctx, drafter.init(params, ctx, hidden)


def join(drafts: list[Draft]) -> Draft:
  """Drafts as one of numpy arrays."""
  return jax.tree.map(lambda *x: np.concatenate(x), *drafts)


def existing(draft: Draft) -> np.ndarray:
  """[M, N]: which nodes exist."""
  return np.arange(draft.tokens.shape[1]) < np.asarray(draft.size)[:, None]


class Fits(NamedTuple):
  """Whether nodes were drawn from their probabilities.

  By the rank of its probability a token shows rows that were given one
  another's distribution; behind every rank of the node before, coins that were
  used twice.
  """

  token: Fit
  rank: Fit
  behind: Fit

  @property
  def least(self) -> float:
    return min(fit.p_value for fit in self)


def fits(draft: Draft, whole: bool = False) -> Fits:
  """Tests the nodes of drafts.

  Args:
    draft: of numpy arrays.
    whole: nodes that do not exist, too.
  """
  tests: list[list[Fit]] = [[], [], []]
  before = None
  for i in range(draft.tokens.shape[1]):
    every = np.ones(len(draft.tokens), bool)
    exists = every if whole else np.asarray(draft.size) > i
    q = np.asarray(draft.probs)[:, i].astype(np.float64)
    total = q.sum(1, keepdims=True)
    q = q / np.where(total > 0, total, 1)
    drawn = np.asarray(draft.tokens)[:, i]
    order = np.argsort(-q, axis=1, kind='stable')
    rank = np.argmax(order == drawn[:, None], 1)
    ranked = np.take_along_axis(q, order, 1)
    tests[0].append(fit_tests.fit_drawn(drawn[exists], q[exists]))
    tests[1].append(fit_tests.fit_drawn(rank[exists], ranked[exists]))
    for group in range(_GROUPS if before is not None else 0):
      here = exists & (np.minimum(before, _GROUPS - 1) == group)
      tests[2].append(fit_tests.fit_drawn(rank[here], ranked[here]))
    before = rank
  return Fits(*map(fit_tests.together, tests))


def no_distribution(draft: Draft) -> str:
  """Why probabilities of nodes that exist are none; '' where they are."""
  probs = np.asarray(draft.probs)[existing(draft)]
  if not np.isfinite(probs).all():
    return 'a probability is no number'
  if (probs < 0).any():
    return f'a probability is {probs.min():.6g}'
  off = np.abs(probs.sum(1) - 1)
  if (off > 1e-4).any():
    return f'probabilities add up to {probs.sum(1)[off.argmax()]:.6g}'
  return ''


def rows_apart(ours: Draft, theirs: Draft) -> np.ndarray:
  """Largest difference [B] of q between two drafts of the same coins.

  Infinite where tokens that were chosen, or sizes, differ.
  """
  same = ours.tokens == theirs.tokens
  exists = existing(ours)
  if ours.probs is None:
    same = (same & (ours.parents == theirs.parents)) | ~exists
    whole = same.all(1) & (ours.size == theirs.size)
    return np.where(whole, 0, np.inf)
  # After a token that rounding decided otherwise nothing can be compared.
  before = np.cumprod(np.roll(same, 1, 1) | (np.arange(same.shape[1]) == 0), 1)
  apart = np.abs(ours.probs - theirs.probs).max(2, initial=0)
  apart = np.where(exists & (before > 0), apart, 0).max(1, initial=0)
  sizes = same.all(1) & (ours.size != theirs.size)
  return np.where(sizes, np.inf, apart)


class Reread(NamedTuple):
  """Drafts by a memory and by having read the text anew, of equal coins."""

  ours: Draft
  theirs: Draft


def reread(
  target, drafter: Drafter, params: Params, memory, ctx: Context, key
) -> Reread:
  """Drafts with what is remembered of a text, and without.

  Args:
    target: the target model.
    drafter: that remembers.
    params: of both.
    memory: what is tested.
    ctx: the text.
    key: [B] keys, the same for both.
  """
  tokens = np.where(
    np.arange(ctx.tokens.shape[1]) < ctx.length[:, None], ctx.tokens, 0
  )
  anew, again = read(
    drafter,
    params,
    tokens,
    ctx.length,
    ctx.sampling,
    ctx.source,
    target=target,
  )
  anew = anew._replace(history=ctx.history)
  # What a policy learned from verdicts is no reading of the text.
  if isinstance(memory, Memory):
    again = again._replace(policy=memory.policy)
  propose = jax.jit(drafter.propose)
  return Reread(
    *(
      jax.device_get(propose(params, state, seen, key)[0])
      for state, seen in ((memory, ctx), (again, anew))
    )
  )


def outline(tree: Any):
  """Structure, shapes and types."""
  leaves, structure = jax.tree.flatten(tree)
  return structure, [(x.shape, x.dtype) for x in leaves]


def _program(function, *args) -> tuple[str, Any]:
  """The program of a function, traced anew, and what it returns.

  Addresses in memory are left out.
  """
  # A function of its own: a trace that was kept would say nothing.
  traced = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)
  made, shapes = traced(*args)
  return re.sub(r' at 0x[0-9a-f]+', '', str(made)), shapes


def not_fixed(target, drafter: Drafter, params: Params) -> str:
  """What of a drafter's shapes and programs is not fixed; '' where all is.

  Nothing is computed: its functions are traced three times, one after the other
  as a step calls them.
  """
  rows, nodes, depth = 3, drafter.nodes, drafter.depth
  vocab, width = target.config.vocab_size, target.config.width
  tokens, length = random_texts(rows, vocab)
  key = generate.row_keys(0, range(rows))
  begin = functools.partial(read.__wrapped__, drafter, target=target)
  given = params, tokens, length, sampling.make(rows)
  path = jnp.zeros((rows, depth + 1), jnp.int32)
  verdict = Verdict(path, path[:, 0], path[:, 0])
  seen = []
  for _ in range(3):
    read_program, (ctx, state) = _program(begin, *given)
    like = ctx.cache[0].k.dtype if ctx.cache else precision()
    hidden = jnp.zeros((rows, depth + 1, len(drafter.taps), width), like)
    program, (draft, proposed) = _program(
      drafter.propose, params, state, ctx, key
    )
    tell, told = _program(
      drafter.commit, params, proposed, ctx, verdict, hidden
    )
    for name, one in (('propose', proposed), ('commit', told)):
      if outline(one) != outline(state):
        return f'{name} returns a memory of other shapes than init'
    wanted = {'tokens': (rows, nodes), 'parents': (rows, nodes)}
    for field, shape in (wanted | {'size': (rows,)}).items():
      found = getattr(draft, field)
      if (found.shape, found.dtype) != (shape, jnp.int32):
        return (
          f'{field} of a draft must be int32{list(shape)}, got '
          f'{found.dtype}{list(found.shape)}'
        )
    if draft.probs is not None and (
      draft.probs.shape != (rows, nodes, vocab)
      or draft.probs.dtype not in (jnp.float32, jnp.float64)
    ):
      return (
        f'probs of a draft must be floats{[rows, nodes, vocab]}, got '
        f'{draft.probs.dtype}{list(draft.probs.shape)}'
      )
    programs = read_program, program, tell
    if any('callback' in one for one in programs):
      return 'a draft asks the host, which no compiled loop can wait for'
    if seen and seen != [programs]:
      return (
        'a second call makes another program than the first: what it drafts, '
        'and the shape of its tree, may depend on its arguments alone'
      )
    seen = [programs]
  return ''
