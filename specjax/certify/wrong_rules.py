"""Planted bugs of rules and of a drafter's promise, seen by enumeration."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from specjax import verify
from specjax.certify import draft_sources, exact, rule_cases
from specjax.certify.tiny_models import TinyModels
from specjax.types import Rule
from specjax.verify import chains
from specjax.verify.judge import at_tokens


@dataclasses.dataclass(frozen=True)
class WrongRule:
  """A rule, or drafts that are not what they promise."""

  name: str
  rule: Rule
  source: Callable[[TinyModels], exact.DraftSource] = rule_cases.CHAIN.source


def _target_itself(draft, scores, row):
  del draft  # Unused.
  return scores.probs[row]


def _with_bonus(bonus):
  """The residual of token verification, and another bonus after the chain."""

  def rest(draft, scores, row):
    right = chains.token_rest(draft, scores, row)
    return jnp.where(row < draft.size, right, bonus(draft, scores.probs[row]))

  return verify.token._replace(rest=rest)


def _argmax(draft, p):
  del draft  # Unused.
  return (jnp.arange(len(p)) == p.argmax()).astype(p.dtype)


def _last_of_the_draft(draft, p):
  del p  # Unused.
  return draft.probs[-1]


def _judged_by(ratio):
  """min(1, ratio(p(x), q(x))), with p at the row above, untouched."""

  def accept(draft, scores):
    p = at_tokens(scores.probs[draft.parents], draft.tokens)
    q = at_tokens(draft.probs, draft.tokens)
    return jnp.minimum(ratio(p, q), 1)

  return accept


def _each_coin_alone(draft, scores):
  """Weights of a block, taken for chances to go on."""
  return chains.block_weights(draft, scores)[1:]


def _cut_before_unlikely(chances):
  """Tokens before the first unlikely one, which was drawn, too."""
  unlikely = np.pad(chances < 0.4, ((0, 0), (0, 1)), constant_values=True)
  return unlikely.argmax(1)


def _unconditional(source):
  """Siblings are drawn without replacement and reported as if with it."""

  def wrong(texts, q, contexts):
    made = source(texts, q, contexts)
    every = np.arange(len(made.rows))[:, None]
    above = made.rows[every, np.asarray(made.draft.parents)]
    return made._replace(draft=made.draft._replace(probs=q.probs[above]))

  return wrong


def _always(draft, scores):
  return jnp.ones_like(chains.token_accept(draft, scores))


_quotient = _judged_by(chains.quotient)

WRONG_RULES = (
  WrongRule(
    'residual is p: q is not subtracted',
    verify.token._replace(rest=_target_itself),
  ),
  WrongRule(
    'a token is accepted with q / p',
    verify.token._replace(
      accept=_judged_by(lambda p, q: chains.quotient(q, p))
    ),
  ),
  WrongRule('the bonus token is the argmax', _with_bonus(_argmax)),
  WrongRule(
    'the bonus token comes from the draft', _with_bonus(_last_of_the_draft)
  ),
  WrongRule(
    'a drawn token is dropped for being unlikely',
    verify.token,
    lambda tiny: exact.tree((0, 1, 2), size=_cut_before_unlikely),
  ),
  WrongRule(
    'block: the residual of token verification',
    verify.block._replace(rest=chains.token_rest),
  ),
  WrongRule(
    'block: the first failed coin ends it',
    verify.block._replace(accept=_each_coin_alone),
  ),
  WrongRule(
    'tree: later siblings are judged by p, not by what is left',
    verify.recursive._replace(accept=_quotient),
    rule_cases.TREE.source,
  ),
  WrongRule(
    'tree: drawn without replacement, reported as with it',
    verify.recursive,
    lambda tiny: _unconditional(exact.tree((0, 0, 1, 1, 2))),
  ),
  WrongRule(
    'k-SEQ: every candidate is tested as if alone',
    verify.k_seq._replace(accept=_quotient),
    rule_cases.CHAINS.source,
  ),
  WrongRule(
    'cascade: the inner rule accepts everything',
    verify.token,
    lambda tiny: draft_sources.of_cascade(
      verify.token._replace(accept=_always), exact.lookup(tiny.prompt, 2), 2
    ),
  ),
)
