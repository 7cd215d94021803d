"""Drafts of nothing but the text and the parameters: there is no state."""

from collections.abc import Callable

from specjax.types import Draft, Drafter


def make(
  depth: int, nodes: int, draft: Callable[..., Draft], **fields
) -> Drafter:
  """The drafter of `draft(params, ctx, key)`; `fields` are others of it."""

  def propose(params, state, ctx, key):
    return draft(params, ctx, key), state

  return Drafter(
    depth,
    nodes,
    init=lambda params, ctx, hidden: (),
    propose=propose,
    commit=lambda params, state, ctx, verdict, hidden: state,
    **fields,
  )
