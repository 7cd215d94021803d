"""The laws of rules and drafters, measures of drafts, and the verdict.

An exact rule hides every bug of a drafter but wrong probabilities: the text
stays right and only the acceptance falls, and acceptance is what is reported.
So drafts themselves are measured, by the trial of a drafter and by the tests of
the library's drafters.
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling
from specjax.drafters.shapes.step_model import Memory
from specjax.errors import UserError
from specjax.loop import generate
from specjax.models import cache as caches
from specjax.stats import fit_tests
from specjax.stats.fit_tests import Fit
from specjax.types import Context, Draft, Drafter, Params
from specjax.types import Verdict as Judged

Row = dict[str, Any]

LAWS = {
  1: 'tokens are drawn from the probabilities that a draft states',
  2: 'a drawn token stays',
  3: 'the memory is what reading the text again would make',
  4: 'shapes and programs are fixed, and the host is not asked',
  5: 'the probabilities of a draft are a distribution',
  6: 'every draft has coins of its own',
  7: 'accept gives chances from 0 to 1',
  8: 'rest gives a distribution',
}
# What to do about a law that can be broken while the output stays right.
REMEDIES = {
  3: (
    'let commit leave the memory that init makes of the same text, or say '
    'learns=True in the Drafter where drafts are meant to depend on earlier '
    'verdicts'
  ),
  7: 'clip what accept returns to [0, 1]',
}
BROKEN = 'exact, but breaks law'
_GROUPS = 4  # of an earlier token, by the rank of its probability


def row_of(part: str, **row) -> Row:
  return {'program': 'certify', 'part': part, **row}


def law_row(law: int, holds: bool | None, detail: str = '') -> Row:
  """A row of a law; `holds` is None where the law does not apply."""
  return row_of('law', law=law, says=LAWS[law], holds=holds, detail=detail)


def planted_row(bug: str, applies: bool, caught: bool, detail: str) -> Row:
  """A row of a bug in the thing on trial; some bugs change nothing there."""
  return row_of(
    'planted',
    bug=bug,
    applies=applies,
    caught=caught,
    detail=detail if applies else 'changes nothing here',
  )


@dataclasses.dataclass
class Verdict:
  """The result of a trial.

  Attributes:
    text: 'exact', 'exact, but breaks law N', 'lossy', 'undecided', or of a
      simulation alone 'not refuted'.
    why: what is wrong; '' where nothing is.
    remedy: what to do about a broken law that leaves the output exact.
    counterexample: the smallest one, as numbers.
    notes: what was not looked at, and why.
  """

  text: str = 'exact'
  why: str = ''
  remedy: str = ''
  counterexample: dict[str, Any] | None = None
  notes: list[str] = dataclasses.field(default_factory=list)

  @property
  def exact(self) -> bool | None:
    """Returns True where the output has the target's distribution.

    None where a simulation alone found nothing wrong.
    """
    if self.text == 'not refuted':
      return None
    return self.text == 'exact' or self.text.startswith(BROKEN)

  @property
  def status(self) -> int:
    """The exit status; 1 also says that the input was wrong."""
    if self.exact is None:
      return 0
    if self.exact:
      return 0 if self.text == 'exact' else 2
    return 3 if self.text == 'lossy' else 1

  def breaks(self, law: int, what: str) -> None:
    """Notes a broken law that leaves the output exact."""
    self.text, self.remedy = f'{BROKEN} {law}', REMEDIES[law]
    self.why = f'it must hold that {LAWS[law]} ({what})'

  def lossy(self, why: str) -> None:
    self.text, self.why = 'lossy', why

  def loses(self, law: int, what: str) -> None:
    """Notes a broken law on which the distribution of the output rests."""
    self.lossy(f'it breaks law {law}, that {LAWS[law]} ({what})')

  def require_found(self, planted: list[Row]) -> None:
    """Leaves the verdict open where a planted bug was not found."""
    missed = [r['bug'] for r in planted if r['applies'] and not r['caught']]
    if missed:
      self.text = 'undecided'
      self.why = f'a planted bug was not seen: {missed[0]}'
    if not any(row['applies'] for row in planted):
      self.notes.append(
        'No planted bug changes anything here, so nothing shows what its tests '
        'would see.'
      )


def failed(error: Exception) -> str:
  """Returns what a user's function raised, in one short line."""
  line = re.sub(r' at 0x[0-9a-f]+', '', str(error).strip().split('\n')[0])
  return f'{type(error).__name__}: {line[:200]}'


@contextlib.contextmanager
def running(who: str, what: str) -> Iterator[None]:
  """Makes a UserError of whatever a user's own function raises.

  Args:
    who: the field and the name of the function.
    what: the part of it that is called.
  """
  try:
    yield
  except UserError:
    raise
  except Exception as error:
    raise UserError(f'{who}: {what} raised {failed(error)}') from error


def text_in_words(tokens: Iterable[int]) -> str:
  return ' '.join(str(int(token)) for token in tokens) or '(nothing)'


# Measures of drafts


def random_texts(rows: int, vocab: int, slots: int = 128):
  """Random texts of 1 to 12 tokens: tokens [rows, slots] and length."""
  random = np.random.default_rng(0)
  length = random.integers(1, 13, rows).astype(np.int32)
  length[:2] = 1, 2
  tokens = random.integers(0, vocab, (rows, slots)).astype(np.int32)
  return np.where(np.arange(slots) < length[:, None], tokens, 0), length


def _context(drafter, params, tokens, length, values, source=None, *, target):
  """Returns a context of texts, and the target's features of them.

  Both the cache and the features are None without a target.
  """
  cache = hidden = None
  if params.target is not None:
    texts = tokens, length, source
    cache, hidden = generate.read_prompts(
      params.target, *texts, target=target, taps=drafter.taps
    )
  history = sampling.History()
  return Context(tokens, length, cache, values, history, source), hidden


def read(drafter, params, tokens, length, values, source=None, *, target):
  """Returns a context of texts, and the memory of having read them."""
  given = tokens, length, values, source
  ctx, hidden = jax.device_put(_context(drafter, params, *given, target=target))
  return ctx, jax.jit(drafter.init)(params, ctx, hidden)


def join(drafts: list[Draft]) -> Draft:
  return jax.tree.map(lambda *x: np.concatenate(x), *jax.device_get(drafts))


def existing(draft: Draft) -> np.ndarray:
  """[M, N]: which nodes exist."""
  return np.arange(draft.tokens.shape[1]) < np.asarray(draft.size)[:, None]


class Fits(NamedTuple):
  """Tests of whether nodes were drawn from their probabilities.

  Ranks of probabilities show rows that were given one another's distribution.
  Ranks behind every rank of the node before show coins that were used twice.
  """

  token: Fit
  rank: Fit
  behind: Fit

  @property
  def least(self) -> float:
    return min(fit.p_value for fit in self)


def fits(draft: Draft, whole: bool = False) -> Fits:
  """Tests the nodes of drafts; where `whole`, also those beyond the size."""
  tests: list[list[Fit]] = [[], [], []]
  before = None
  for i in range(draft.tokens.shape[1]):
    exists = np.asarray(draft.size) > (-1 if whole else i)
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


def no_distribution(draft: Draft) -> bool:
  """Returns whether the probabilities of a node are no distribution."""
  probs = np.asarray(draft.probs)[existing(draft)]
  sums = np.abs(probs.sum(1) - 1) <= 1e-4  # Neither NaN nor infinity is.
  return not (sums.all() and (probs >= 0).all())


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


def reread(
  target, drafter: Drafter, params: Params, memory, ctx: Context, key
) -> tuple[Draft, Draft]:
  """Returns drafts by a memory, and by having read the text anew.

  Args:
    target: the target model.
    drafter: the drafter.
    params: parameters of both.
    memory: what the drafter remembers of the text.
    ctx: the text.
    key: [B] keys, the same for both drafts.
  """
  tokens = np.where(
    np.arange(ctx.tokens.shape[1]) < ctx.length[:, None], ctx.tokens, 0
  )
  given = tokens, ctx.length, ctx.sampling, ctx.source
  anew, again = read(drafter, params, *given, target=target)
  anew = anew._replace(history=ctx.history)
  # What a policy learned from verdicts is no reading of the text.
  if isinstance(memory, Memory):
    again = again._replace(policy=memory.policy)
  propose = jax.jit(drafter.propose)
  ours, theirs = (
    jax.device_get(propose(params, state, seen, key)[0])
    for state, seen in ((memory, ctx), (again, anew))
  )
  return ours, theirs


def outline(tree: Any) -> tuple[Any, list]:
  """Returns the structure of a tree, and shapes and types of its leaves."""
  leaves, structure = jax.tree.flatten(tree)
  return structure, [(x.shape, x.dtype) for x in leaves]


def _program(function, *args) -> tuple[str, Any]:
  """The program of a function without addresses, and what it returns."""
  # A function of its own: a trace that was kept would say nothing.
  traced = jax.make_jaxpr(lambda *given: function(*given), return_shape=True)
  made, shapes = traced(*args)
  return re.sub(r' at 0x[0-9a-f]+', '', str(made)), shapes


def not_fixed(target, drafter: Drafter, params: Params) -> str:
  """Says which shape or program of a drafter is not fixed; '' if all are.

  Nothing is computed: its functions are traced twice, one after the other as a
  step calls them.
  """
  rows, nodes, depth = 3, drafter.nodes, drafter.depth
  vocab, width = target.config.vocab_size, target.config.width
  tokens, length = random_texts(rows, vocab)
  key = generate.row_keys(0, range(rows))
  begin = functools.partial(_context, drafter, target=target)
  ctx, features = jax.eval_shape(
    begin, params, tokens, length, sampling.make(rows)
  )
  path = jnp.zeros((rows, depth + 1), jnp.int32)
  verdict = Judged(path, path[:, 0], path[:, 0])
  seen = []
  for _ in range(2):
    begun, state = _program(drafter.init, params, ctx, features)
    like = caches.dtype_of(ctx.cache) if ctx.cache else float
    hidden = jnp.zeros((rows, depth + 1, len(drafter.taps), width), like)
    program, (draft, proposed) = _program(
      drafter.propose, params, state, ctx, key
    )
    learn, committed = _program(
      drafter.commit, params, proposed, ctx, verdict, hidden
    )
    for name, one in (('propose', proposed), ('commit', committed)):
      if outline(one) != outline(state):
        return f'{name} returns a memory of other shapes than init'
    wanted = {'tokens': (rows, nodes), 'parents': (rows, nodes)}
    wanted |= {'size': (rows,), 'probs': (rows, nodes, vocab)}
    for field, shape in wanted.items():
      found = getattr(draft, field)
      types = ('float32', 'float64') if field == 'probs' else ('int32',)
      if found is not None and (
        found.shape != shape or found.dtype.name not in types
      ):
        return (
          f'{field} of a draft must be {types[0]}{list(shape)}, got '
          f'{found.dtype}{list(found.shape)}'
        )
    programs = begun, program, learn
    if any('callback' in one for one in programs):
      return 'a draft asks the host, which no compiled loop can wait for'
    if seen and seen != [programs]:
      return (
        'a second call makes another program than the first: what it drafts, '
        'and the shape of its tree, may depend on its arguments alone'
      )
    seen = [programs]
  return ''
