"""Conversations: a batch of them is decoded turn by turn, and counts as one.

The unit of everything that is counted is the conversation: tokens, calls and
seconds of its turns are added up, so intervals never take two turns of one
question for two questions.

  indices    first turn           second turn
  0          0: prompt, answer    0 + 3: the same, with the next question
  1          1: prompt, answer    1 + 3: no such turn, no new tokens
  2          2: prompt, answer    2 + 3
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax.bench.measure import Job, Log, Run
from specjax.prompts.conversations import Conversation
from specjax.stats import metrics
from specjax.types import Counts

# Steps that nobody took, between the logs of two turns: no step is paired with
# one of another turn.
_APART = metrics.LAGS


def following(
  job: Job, talks: Sequence[Conversation], answers: Sequence[list[list[int]]]
) -> tuple[Job, int] | None:
  """Returns the next turn of a batch of conversations.

  Args:
    job: their first turn.
    talks: all of the domain; the job's indices count them.
    answers: token ids of each turn so far, of each row.

  Returns:
    The job, and in how many prompts an answer lost its end; None where all
    turns were played.
  """
  texts, shortened = list(job.prompts), 0
  goes_on = np.zeros(len(texts), bool)
  for row, index in enumerate(job.indices[: job.live]):
    found = talks[index].prompt([turn[row] for turn in answers])
    if found is not None:
      texts[row], goes_on[row] = found[0], True
      shortened += found[1]
  if not goes_on.any():
    return None
  new_tokens = job.new_tokens
  if not goes_on.all():
    new_tokens = np.where(goes_on, new_tokens, 0)
  # Every turn has keys of its own, the same for every method.
  indices = job.indices + len(answers) * len(talks)
  made = dataclasses.replace(
    job, prompts=texts, indices=indices, new_tokens=new_tokens
  )
  return made, shortened


class Pair(NamedTuple):
  """Two answers to one prompt."""

  where: dict  # the number of the prompt and, of a conversation, of the turn
  prompt: list[int]
  plain: list[int]
  other: list[int]


def pairs(
  job: Job, talks: Sequence[Conversation], base: Run, run: Run
) -> Iterator[Pair]:
  """Yields the texts of two runs whose later turns hold the first's answers.

  Args:
    job: the first turn of both.
    talks: the conversations of the domain; none where prompts have no turns.
    base: one run.
    run: the other.
  """
  both = [base.turns or [base], run.turns or [run]]
  for turn, (one, other) in enumerate(zip(*both, strict=True)):
    here, played = job, one.counts.tokens > 0
    if turn:
      here, _ = following(job, talks, [r.texts for r in base.turns[:turn]])
    for row in np.flatnonzero(played):
      where = {'prompt': int(job.indices[row])}
      if talks:
        where['turn'] = turn + 1
      yield Pair(where, here.prompts[row], one.texts[row], other.texts[row])


def answers_of(runs: Sequence[Run]) -> list[list[list[int]]]:
  """Token ids of every turn, of the rows of all batches."""
  most = max(len(run.turns) for run in runs)

  def texts(run, turn):
    if turn < len(run.turns):
      return run.turns[turn].texts
    return [[] for _ in run.texts]

  return [
    [text for run in runs for text in texts(run, turn)] for turn in range(most)
  ]


def play(
  decode: Callable[[Job], Run],
  job: Job,
  talks: Sequence[Conversation],
  lead: Sequence[Run] = (),
) -> Run:
  """Decodes a batch of prompts, or every turn of a batch of conversations.

  Args:
    decode: makes a run of a job.
    job: the first turn.
    talks: the conversations of the domain; none where prompts have no turns.
    lead: runs of the same rows, whose answers later turns hold; by default
      they hold this run's own.
  """
  runs = [decode(job)]
  if not talks:
    return runs[0]
  given = answers_of(lead) if lead else None
  while True:
    answers = given[: len(runs)] if given else [run.texts for run in runs]
    found = following(job, talks, answers)
    if found is None:
      return join(runs)
    later, shortened = found
    runs.append(dataclasses.replace(decode(later), shortened=shortened))


def join(runs: list[Run]) -> Run:
  """Joins the turns of a batch into one run."""
  rows = zip(*(r.texts for r in runs), strict=True)
  columns = zip(*(r.counts for r in runs), strict=True)
  # No two turns are next to each other.
  logs = [r.log.padded(_APART) for r in runs if r.log is not None]
  log = logs and Log(*(np.concatenate(x, 1) for x in zip(*logs, strict=True)))
  return Run(
    [[token for text in texts for token in text] for texts in rows],
    Counts(*(np.sum(column, axis=0) for column in columns)),
    sum(r.seconds for r in runs),
    sum(r.prefill_seconds for r in runs),
    sum(r.compilations for r in runs),
    log or None,
    runs,
    sum(r.shortened for r in runs),
  )
