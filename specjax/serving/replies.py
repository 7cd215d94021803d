"""Answers of the OpenAI API: whole, or parts of a stream.

`metrics.speculative_decoding` has the names that vLLM gives them.
"""

import codecs
import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specjax.checkpoints.vocabularies import tokens
from specjax.loop.token_records import Logprob
from specjax.types import Counts

if TYPE_CHECKING:
  from specjax.serving.service import Run, Service

_LEAST = -9999.0  # instead of minus infinity, which JSON has not


class Spelled:
  """The bytes of each token of a vocabulary."""

  def __init__(self, tokenizer: Any, vocab_size: int):
    self._tokenizer, self._texts = tokenizer, {}
    # Tokens without bytes of their own are decoded.
    with contextlib.suppress(ValueError):
      read = tokens.read_tokens('the target', tokenizer, vocab_size)
      self._texts = dict(read.texts)

  def bytes_of(self, token: int) -> bytes:
    if token in self._texts:
      return self._texts[token]
    return self._tokenizer.decode([token]).encode()

  def text_of(self, token: int) -> str:
    """Its text, or the bytes of one that is no text by itself."""
    made = self.bytes_of(token)
    try:
      return made.decode()
    except UnicodeDecodeError:
      return 'bytes:' + ''.join(rf'\x{one:02x}' for one in made)


class Offsets:
  """Where tokens begin in a text: characters before each of them."""

  def __init__(self, spelled: Spelled):
    self._spelled, self._passed = spelled, 0
    self._decoder = codecs.getincrementaldecoder('utf-8')('replace')

  def push(self, token: int) -> int:
    """The offset of the next token; half a character begins where it begins."""
    begin = self._passed
    self._passed += len(self._decoder.decode(self._spelled.bytes_of(token)))
    return begin


def _number(logprob: float) -> float:
  return max(logprob, _LEAST)


def of_chat(
  said: Sequence[tuple[int, Logprob]], count: int, spelled: Spelled
) -> dict[str, Any]:
  """Log-probabilities of tokens as a chat has them, with alternatives."""

  def one(token: int, value: float) -> dict[str, Any]:
    return {
      'token': spelled.text_of(token),
      'logprob': _number(value),
      'bytes': [*spelled.bytes_of(token)],
    }

  content = [
    one(token, it.value) | {'top_logprobs': [one(*x) for x in it.top[:count]]}
    for token, it in said
  ]
  return {'content': content, 'refusal': None}


def of_completion(
  said: Sequence[tuple[int, Logprob]],
  count: int,
  spelled: Spelled,
  offsets: Offsets,
) -> dict[str, Any]:
  """Log-probabilities of tokens as a completion has them.

  Args:
    said: tokens with their log-probabilities.
    count: alternatives of each.
    spelled: the tokens.
    offsets: of the text, up to these tokens.
  """
  return {
    'tokens': [spelled.text_of(token) for token, _ in said],
    'token_logprobs': [_number(it.value) for _, it in said],
    'top_logprobs': [
      {spelled.text_of(token): _number(x) for token, x in it.top[:count]}
      for _, it in said
    ],
    'text_offset': [offsets.push(token) for token, _ in said],
  }


def speculation(counts: Sequence[Counts], depth: int) -> dict[str, Any]:
  """Statistics of drafting for some texts, in their whole steps.

  Args:
    counts: of each.
    depth: most tokens of a draft.
  """
  histogram = sum((x.histogram for x in counts), np.zeros(depth + 1, int))
  steps = int(histogram.sum())
  accepted = int(sum(x.accepted.sum() for x in counts))
  drafted = int(sum(x.drafted for x in counts))
  return {
    'speculative_decoding': {
      'mean_acceptance_length': (steps and 1 + accepted / steps) or None,
      'draft_acceptance_rate': accepted / drafted if drafted else None,
      'acceptance_histogram': histogram.tolist(),
      'num_spec_steps': steps,
      'num_accepted_draft_tokens': accepted,
      'num_draft_tokens': drafted,
      'num_spec_tokens': depth,
    }
  }


class Answer:
  """The answer to one request, as it grows."""

  def __init__(self, run: 'Run', name: str, service: 'Service'):
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
    self._ends = [''] * count
    self._counts: list[Counts] = []
    self._said: list[list] = [[] for _ in run.texts]
    self._origins: list[list] = [[] for _ in run.texts]
    self._offsets = [Offsets(self._spelled) for _ in run.texts]

  def add(self, place: int, piece: Any) -> None:
    self._texts[place] += piece.text
    self._tokens += piece.tokens
    self._said[place] += piece.said
    self._origins[place] += piece.origins
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
    """Usage and metrics, at the end of an answer."""
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
      end |= self._told(self._origins[place])
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
    """The log-probabilities of the last tokens of a text."""
    count, spelled = self._run.asked.logprobs, self._spelled
    if count is None:
      return None
    if self._chat:
      return of_chat(said, count, spelled)
    return of_completion(said, count, spelled, self._offsets[place])

  def _told(self, origins: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The origins of the last tokens of a text, if they are asked for."""
    if not self._run.asked.origins:
      return {}
    return {'origins': [{'text': x, 'origin': kind} for x, kind in origins]}

  def _choice(
    self,
    place: int,
    said: dict[str, str],
    end: str,
    logprobs: Any = None,
    origins: Sequence[tuple[str, str]] = (),
  ) -> bytes:
    finish = {'finish_reason': end or None, 'logprobs': logprobs}
    finish |= self._told(origins)
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
    if piece.text or piece.said or piece.origins:
      logprobs = self._logprobs(place, piece.said) if piece.said else None
      said = {'content': piece.text}
      parts.append(self._choice(place, said, '', logprobs, piece.origins))
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
