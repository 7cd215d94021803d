"""Drafters that are not of the library: checked before they run.

The types and shapes of a draft are seen when it is traced, before the target's
weights are read; its numbers only in a first draft behind one prompt. The loop
looks at neither.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from specjax import sampling, verify
from specjax.arguments import misfit
from specjax.bench.plan import PlannedDrafter
from specjax.errors import UserError, need
from specjax.loop import generate, scoring
from specjax.loop.scoring import DraftError
from specjax.models.transformer import Model
from specjax.types import Drafter, Params, Spec, Verdict

OURS = 'specjax', 'experiments'  # whose drafters the tests prove


# Drafters with their parameters, by how errors call them.
Named = dict[str, tuple[Drafter, Any]]


def choose(
  planned: Mapping[str, PlannedDrafter],
  drafts: Mapping[tuple[str, int], tuple[Drafter, Any]],
) -> Named:
  """Returns the drafters that are not of the library.

  Args:
    planned: drafters by name.
    drafts: what was loaded, by name and draft length.
  """
  own = {}
  for (name, gamma), made in drafts.items():
    one = planned[name]
    if any(x.load.partition('.')[0] not in OURS for x in one.levels()):
      own[f'{one.field}: {name} ({one.load}) with gamma {gamma}'] = made
  return own


def _first(target: Model, drafter: Drafter, prompt: Sequence[int]):
  """Returns a function of parameters that makes the first draft of a prompt.

  Beside the draft it returns what the drafter remembers after init, propose
  and commit.
  """
  spec = Spec(target, drafter, verify.observe, ())

  def first(params):
    state = generate.start(
      params,
      [prompt],
      spec=spec,
      new_tokens=1,
      key=generate.row_keys(0, [0]),
      values=sampling.make(1, 1.0),
    )
    ctx = generate.context(state)
    draft, after = scoring.propose(
      drafter, params, state.drafter, ctx, state.key
    )
    out, logits = scoring.feed(target, params.target, ctx, draft, drafter.taps)
    scoring.check_entries(draft, logits)
    none = jnp.zeros(1, jnp.int32)
    verdict = Verdict(jnp.zeros((1, drafter.depth + 1), jnp.int32), none, none)
    features = scoring.along(out.taps, verdict.path)
    ctx = ctx._replace(length=ctx.length + 1)
    committed = drafter.commit(params, after, ctx, verdict, features)
    return draft, (state.drafter, after, committed)

  return first


def check_shapes(
  target: Model, drafts: Named, prompt: Sequence[int], longest: int
) -> None:
  """Checks sizes, types and shapes, without weights of the target.

  Args:
    target: the target model.
    drafts: the drafters.
    prompt: of the run.
    longest: tokens of its longest text.

  Raises:
    UserError: names the drafter and what it broke.
  """
  for name, (drafter, params) in drafts.items():
    need(
      drafter.depth >= 1 and drafter.nodes >= drafter.depth,
      f'{name}: depth must be at least 1 and nodes as many, got '
      f'{drafter.depth} and {drafter.nodes}',
    )
    need(
      drafter.positions is None or longest <= drafter.positions,
      f'{name}: it has {drafter.positions} positions, but a prompt '
      f'and max_new_tokens make {longest} tokens: shorten one of them',
    )
    with _naming(name):
      weights = jax.eval_shape(target.init, jax.random.key(0))
      first = _first(target, drafter, prompt)
      _, (begun, *later) = jax.eval_shape(first, Params(weights, params))
      # One program serves all steps: a memory keeps its shapes.
      for state, where in zip(later, ('propose', 'commit'), strict=True):
        if wrong := misfit(state, begun):
          raise DraftError(
            f'{where} must return a state of the shapes that init gave: '
            f'state{wrong}'
          )


def check_numbers(
  made: tuple[Model, Any], drafts: Named, prompt: Sequence[int]
) -> None:
  """Checks the sizes and tokens of a first draft behind a prompt.

  Raises:
    UserError: names the drafter and what it broke.
  """
  target, weights = made
  for name, (drafter, params) in drafts.items():
    first = jax.jit(_first(target, drafter, prompt))
    draft, _ = jax.device_get(first(Params(weights, params)))
    with _naming(name):
      scoring.check_numbers(drafter, draft, target.config.vocab_size)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
  try:
    yield
  except DraftError as error:
    raise UserError(f'{name}: {error}; see specjax.types.Drafter') from error
