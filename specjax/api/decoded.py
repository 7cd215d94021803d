"""What became of some prompts: texts, and how they were made."""

import dataclasses
from typing import Any

import numpy as np

from specjax.loop.token_records import Logprob
from specjax.types import Counts


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded:
  """What became of some prompts.

  Attributes:
    texts: the new text of each prompt, without what was continued and without
      the token that ended it; None where the target has no tokenizer.
    tokens: the new tokens of each, with that token.
    ended: [B] whether a text ended by itself; otherwise it reached its length
      and was cut: then it is no whole text of what constrained it.
    counts: statistics of each row, see `types.Counts`, on the host.
    logprobs: of the tokens, see `told`; None where they were not asked for.
  """

  texts: list[str] | None
  tokens: list[list[int]]
  ended: list[bool]
  counts: Counts
  logprobs: list[list[Logprob]] | None = None

  @property
  def target_calls(self) -> int:
    """Passes of the target over all rows."""
    return int(self.counts.target_calls.sum())

  @property
  def tau(self) -> float:
    """Tokens per target call, the bonus or corrected one included."""
    return float(self.counts.tokens.sum() / max(self.target_calls, 1))

  @property
  def tau_by_row(self) -> list[float]:
    """The same of each row."""
    calls = np.maximum(self.counts.target_calls, 1)
    return (self.counts.tokens / calls).tolist()

  @property
  def acceptance_rate(self) -> float:
    """Accepted over drafted tokens; NaN where none were drafted."""
    return _over(self.counts.accepted.sum(), self.counts.drafted.sum())

  @property
  def acceptance_by_position(self) -> list[float]:
    """Share of the steps that accepted the first, second, ... drafted token."""
    steps = self.counts.histogram.sum()
    return [_over(x, steps) for x in self.counts.accepted.sum(0)]

  @property
  def accepted_lengths(self) -> list[int]:
    """How many steps accepted 0, 1, 2, ... drafted tokens."""
    return self.counts.histogram.sum(0).tolist()

  def __repr__(self) -> str:
    return (
      f'<{len(self.tokens)} texts, {int(self.counts.tokens.sum())} tokens, '
      f'{self.target_calls} target calls, tau {self.tau:.2f}>'
    )


def _over(count: Any, of: Any) -> float:
  return float(count / of) if of else float('nan')
