"""Gives the text of `decode` piece by piece, as it is committed.

for piece in specjax.stream(target, draft, 'def fib(n):', gamma=3):
  print(piece.text, end='', flush=True)
print(piece.finish, piece.whole.tau)
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax import arguments
from specjax.api import request
from specjax.api.decoding import Decoded
from specjax.api.text import Shown, check_stop
from specjax.arguments import BOUND, check_number, named
from specjax.loop.token_records import Logprob, read
from specjax.types import LoadedDrafter, Target

STOP, LENGTH = 'stop', 'length'


class Piece(NamedTuple):
  """The part of a text that one step added.

  Text comes when no later token can change it: a token may add nothing, and
  the next one what was kept. `texts` has one entry for each token.
  """

  tokens: list[int]
  origins: list[str]  # of these: 'accepted', 'corrected' or 'bonus'
  texts: list[str]
  logprobs: list[Logprob]  # empty where they were not asked for
  finish: str = ''  # of the last piece: 'stop', or 'length' where it was cut
  whole: Decoded | None = None  # of the last piece: the text and its counts

  @property
  def text(self) -> str:
    """The text that became certain in this step."""
    return ''.join(self.texts)


def _check_prompt(target: Any, prompt: Any) -> None:
  arguments.check_target(target)
  if target.tokenizer is None:
    raise ValueError(
      f'target: {target.path or "it"} has no tokenizer, which makes text of '
      'tokens: add one, or use specjax.decode'
    )
  one = isinstance(prompt, str)
  if not one and isinstance(prompt, Sequence | np.ndarray):
    one = not any(isinstance(x, str) or np.ndim(x) for x in prompt)
  if not one:
    raise ValueError(
      'prompt must be one text, or the token ids of one, got '
      f'{named(prompt)}: specjax.decode takes several'
    )


def stream(
  target: Target,
  drafter: LoadedDrafter | None,
  prompt: str | Sequence[int],
  *,
  stop: str | Sequence[str] = (),
  **options: Any,
) -> Iterator[Piece]:
  """Continues one prompt, and gives its text as it is committed.

  The tokens are those of `decode` of this prompt with the same arguments. The
  texts of all pieces together are the text that it returns, up to the first
  string of `stop`, which is not shown; neither is what ended the text.

  All is checked at the call; decoding begins with the first piece that is asked
  for, and goes no further than the last one.

  Args:
    target: from `load`, with a tokenizer.
    drafter: from a loader; None: plain decoding.
    prompt: a text, or token ids.
    stop: strings that end the text. Tokens behind the one that completes a
      string are dropped; counts are of all that were decoded.
    **options: as for `decode`; `new_tokens` is one number.

  Returns:
    A piece for each step, of at least one token. The last one has `finish`,
    and all that `decode` returns as `whole`.

  Raises:
    ValueError: one of these is wrong or does not fit the others; names it.
    FloatingPointError: of the iterator, where the target gives NaN or infinite
      logits.
  """
  _check_prompt(target, prompt)
  asked = request.read_options(stream, options)
  check_number('new_tokens', asked.new_tokens, 1, BOUND)
  stops = check_stop(stop)
  prompts: Any = [prompt]
  made = request.prepare(target, drafter, prompts, asked, origins=True)
  return _pieces(target, made, stops)


def _pieces(
  target: Target, made: request.Prepared, stop: Sequence[str]
) -> Iterator[Piece]:
  row, shown = Shown(target.tokenizer, target.eos, stop), ''
  all_tokens: list[int] = []
  logprobs: list[Logprob] = []
  state, begin = made.begin(), 0
  while True:
    state = made.advance(state, 1)
    rows = read(state, {0: begin})
    request.check_finite(rows)
    (new,), begin = rows, rows[0].end
    texts = row.push(new.tokens, new.done)
    count = len(texts)
    tokens, values = new.tokens[:count], new.logprobs[:count]
    all_tokens += tokens
    logprobs += values
    piece = Piece(tokens, new.origins[:count], texts, values)
    shown += piece.text
    if not new.done and not row.ended:
      yield piece
      continue
    counts = jax.tree.map(lambda x: x[None], new.counts)
    told = None if made.recording.logprobs is None else [logprobs]
    whole = Decoded([shown], [all_tokens], [row.ended], counts, told)
    yield piece._replace(finish=STOP if row.ended else LENGTH, whole=whole)
    return
