"""What is sent: whole answers and parts of a stream, as the OpenAI API has it.

`metrics.speculative_decoding` has the names that vLLM gives them.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.serving import spelling
from specjax.serving.service import Run, Service
from specjax.types import Counts


def _share(count: float, of: float) -> float | None:
  return float(count / of) if of else None


def speculation(counts: Sequence[Counts], depth: int) -> dict[str, Any]:
  """What drafting did for some texts, in their whole steps.

  Args:
    counts: of each.
    depth: most tokens of a draft.
  """
  histogram = sum((x.histogram for x in counts), np.zeros(depth + 1, int))
  steps, accepted = (
    int(histogram.sum()),
    int(sum(x.accepted.sum() for x in counts)),
  )
  drafted = int(sum(x.drafted for x in counts))
  return {
    'speculative_decoding': {
      'mean_acceptance_length': (steps and 1 + accepted / steps) or None,
      'draft_acceptance_rate': _share(accepted, drafted),
      'acceptance_histogram': histogram.tolist(),
      'num_spec_steps': steps,
      'num_accepted_draft_tokens': accepted,
      'num_draft_tokens': drafted,
      'num_spec_tokens': depth,
    }
  }


class Answer:
  """The answer to one request, as it grows."""

  def __init__(self, run: Run, name: str, service: Service):
    """Takes a request, a name for its answer, and who answers."""
    self._chat, self._run = run.asked.chat, run
    self._depth, self._spelled = run.depth, service.spelled
    prefix = 'chatcmpl' if self._chat else 'cmpl'
    self._head = {
      'id': f'{prefix}-{name}',
      'created': run.created,
      'model': service.limits.model,
      'seed': run.seed,
    }
    count = len(run.texts)
    self._texts, self._tokens = [''] * count, 0
    self._ends, self._counts = [''] * count, []
    self._said: list[list] = [[] for _ in run.texts]
    self._offsets = [spelling.Offsets(self._spelled) for _ in run.texts]

  def add(self, place: int, piece: Any) -> None:
    self._texts[place] += piece.text
    self._tokens += piece.tokens
    self._said[place] += piece.said
    if piece.finish:
      self._ends[place] = piece.finish
      self._counts.append(piece.counts)

  def _usage(self) -> dict[str, Any]:
    read = self._run.prompt_tokens
    accepted = rejected = 0
    if self._run.asked.prediction:  # All drafts are copied from it.
      accepted = int(sum(x.accepted.sum() for x in self._counts))
      rejected = int(sum(x.drafted for x in self._counts)) - accepted
    return {
      'prompt_tokens': read,
      'completion_tokens': self._tokens,
      'total_tokens': read + self._tokens,
      'completion_tokens_details': {
        'accepted_prediction_tokens': accepted,
        'rejected_prediction_tokens': rejected,
      },
    }

  def _about(self) -> dict[str, Any]:
    """What an answer ends with."""
    return {
      'usage': self._usage(),
      'metrics': speculation(self._counts, self._depth),
    }

  def whole(self) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = []
    for place, text in enumerate(self._texts):
      logprobs = self._logprobs(place, self._said[place])
      end = {'finish_reason': self._ends[place], 'logprobs': logprobs}
      if self._chat:
        said = {'role': 'assistant', 'content': text, 'refusal': None}
        choices.append({'index': place, 'message': said} | end)
      else:
        choices.append({'index': place, 'text': text} | end)
    kind = 'chat.completion' if self._chat else 'text_completion'
    return self._head | {'object': kind, 'choices': choices} | self._about()

  def _part(self, choices: list, more: dict[str, Any]) -> bytes:
    kind = 'chat.completion.chunk' if self._chat else 'text_completion'
    return event(self._head | {'object': kind, 'choices': choices} | more)

  def _logprobs(self, place: int, said: Sequence) -> dict[str, Any] | None:
    """Of the last tokens of a text."""
    count, spelled = self._run.asked.logprobs, self._spelled
    if count is None:
      return None
    if self._chat:
      return spelling.of_chat(said, count, spelled)
    return spelling.of_completion(said, count, spelled, self._offsets[place])

  def _choice(
    self, place: int, said: dict[str, str], end: str, logprobs: Any = None
  ) -> bytes:
    finish = {'finish_reason': end or None, 'logprobs': logprobs}
    body = {'delta': said} if self._chat else {'text': said.get('content', '')}
    more: dict = {'usage': None} if self._run.asked.usage else {}
    return self._part([{'index': place} | body | finish], more)

  def begin(self) -> list[bytes]:
    """The parts of a stream before any text: who speaks."""
    said = {'role': 'assistant', 'content': ''}
    places = range(len(self._texts)) if self._chat else ()
    return [self._choice(place, said, '') for place in places]

  def part(self, place: int, piece: Any) -> list[bytes]:
    """The parts of a stream for what came, and was added."""
    parts = []
    if piece.text or piece.said:
      logprobs = self._logprobs(place, piece.said) if piece.said else None
      said = {'content': piece.text}
      parts.append(self._choice(place, said, '', logprobs))
    if piece.finish:
      parts.append(self._choice(place, {}, piece.finish))
    return parts

  def end(self) -> list[bytes]:
    """The last parts of a stream."""
    usage = [self._part([], self._about())] if self._run.asked.usage else []
    return [*usage, DONE]


def event(body: dict[str, Any]) -> bytes:
  """A server-sent event."""
  return f'data: {json.dumps(body, ensure_ascii=False)}\n\n'.encode()


DONE = b'data: [DONE]\n\n'
