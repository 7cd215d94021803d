"""Whether greedy texts of a method are those of plain decoding."""

from collections.abc import Callable, Sequence
from typing import Any

from specjax.bench import ties, turns
from specjax.bench.measure import Job, Run
from specjax.prompts.conversations import Conversation


def compare(
  ways: list[ties.Scoring],
  values: Callable[[list[int]], Any],
  units: Sequence[Job],
  talks: Sequence[Conversation],
  base: Sequence[Run],
  runs: Sequence[Run],
) -> dict:
  """Fields of a row: texts that are alike, and the others one by one.

  A difference is listed as `ties.Difference` says: a tie or a bug.

  Args:
    ways: how both were computed.
    values: sampling values of one prompt, for one row.
    units: the batches, greedy.
    talks: the conversations of the domain; none where prompts have no turns.
    base: plain decoding of each batch.
    runs: of the method.
  """
  differences, same = [], 0
  for first, plain, run in zip(units, base, runs, strict=True):
    for text in turns.pairs(first, talks, plain, run):
      if text.plain == text.other:
        same += 1
        continue
      one = values(text.prompt)
      found = ties.explain(ways, text.prompt, one, text.plain, text.other)
      differences.append(text.where | found._asdict())
  return {'identical_to_plain': same, 'differences': differences}
