"""Drafts that a smaller model has verified before the target does.

The inner rule's own functions are multiplied out, as those of the target's rule
are: what is proved of the text is proved of both levels together.
"""

import numpy as np

from specjax import exact
from specjax.types import Rule


def staged(
  rule: Rule,
  inner: exact.DraftSource,
  depth: int,
  r: exact.Distributions | None = None,
) -> exact.DraftSource:
  """The drafts of `drafters.cascade`: inner steps until there are K tokens.

  Their probabilities come from the inner rule, not from q, which is promised.

  Args:
    rule: how inner drafts are judged.
    inner: all of them.
    depth: K.
    r: laws of the inner drafter; None where it chooses.
  """

  def source(texts, q, contexts):
    made = exact.tree(tuple(range(depth)))(texts, q, contexts)
    reached = np.zeros((len(contexts), len(texts)))
    ends = texts.length(np.asarray(contexts)) + depth
    cut = {end: texts.cut(end, ())[0] for end in set(ends.tolist())}
    begins = np.arange(texts.offset[ends.max()])
    law = exact.step(rule, inner, texts, q, r or q, begins)
    for row, first, end in zip(reached, contexts, ends, strict=True):
      row[first] = 1
      # Longer texts have higher numbers: each is complete when it is met.
      for text in range(first, texts.offset[end]):
        if row[text]:
          after = np.flatnonzero(law[text])
          weight = row[text] * law[text, after]
          np.add.at(row, cut[end][after], weight)
    return made._replace(weight=reached[made.context, made.rows[:, -1]])

  return source
