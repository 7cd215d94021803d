"""A conversation in the terminal, with where every token came from.

  specjax chat pair \\
    --target.path=TARGET --draft.path=DRAFT

What you say is put into the tokenizer's chat template; a target without one
goes on with the text, as that of `quickstart`. The first drafter, rule
and temperature of the experiment are used; its `prompt` is said first. Accepted
tokens are green, corrected ones red and bonus tokens yellow; without a terminal
the text is plain. Each answer ends with its tokens per target call and per
second, where the time up to its first tokens, in which programs are compiled,
is told apart.

  /plain   answers without speculation, and with it again
  /reset   forgets what was said
  /quit    ends the program, as the end of the input does; Ctrl-C ends an answer
"""

import dataclasses
import signal
import sys
import time
from collections.abc import Iterator

import specjax
from specjax import prompts
from specjax.bench import single_model, trace
from specjax.bench.config import Experiment
from specjax.bench.plan import plan
from specjax.cli import command, progress
from specjax.cli.fields import SEEDS
from specjax.errors import UserError, blame, need

_SMALLEST = 512  # slots of a buffer; larger ones are powers of two


@dataclasses.dataclass
class Talker(single_model.Pair):
  """Who answers, and what was said.

  Attributes:
    speculates: false where the target answers alone.
    says: of the user, one for each turn.
    answers: token ids, one list for each turn that was answered.
    spoken: answers since the start, whatever was forgotten.
  """

  speculates: bool = True
  says: list[str] = dataclasses.field(default_factory=list)
  answers: list[list[int]] = dataclasses.field(default_factory=list)
  spoken: int = 0

  def reset(self) -> None:
    self.says.clear()
    self.answers.clear()

  def prompt(self) -> list[int]:
    """The conversation as token ids; the oldest turns go where it is too long.

    Raises:
      UserError: what was said last is too long by itself.
    """
    while True:
      ids = prompts.encode(
        self.target.tokenizer, self.form, self.says, self.answers
      )
      if (taken := self.size(ids)) <= self.room:
        return ids
      need(
        len(self.says) > 1,
        f'this has {taken} tokens, and there is room for {self.room}: say '
        'less, or lower max_new_tokens',
      )
      del self.says[0], self.answers[0]
      print('(the oldest turn is forgotten)')

  def answer(self) -> Iterator[specjax.Piece]:
    """Pieces of the answer to what was said."""
    ids, new = self.prompt(), self.plan.max_new_tokens
    behind = self.made.depth + 1 + self.made.beyond
    needed = len(ids) + new + behind
    self.spoken += 1
    with blame():
      yield from specjax.stream(
        self.target,
        self.drafter if self.speculates else None,
        ids,
        gamma=self.planned.gammas[0],
        new_tokens=new,
        temperature=self.plan.temperatures[0],
        seed=(self.plan.seed + self.spoken - 1) % SEEDS,
        rule=self.rule if self.speculates else None,
        slots=max(_SMALLEST, 1 << (needed - 1).bit_length()),
        **self.plan.sampling.stages,
      )


def speak(talker: Talker, colour: bool) -> None:
  """Prints an answer as it is made, and what it took."""
  tokens: list[int] = []
  last = None
  begin = time.perf_counter()
  try:
    pieces = progress.until_first('until the first token', talker.answer())
    for piece in pieces:
      if not tokens:
        first, early = time.perf_counter(), len(piece.tokens)
      tokens += piece.tokens
      shown = zip(piece.texts, piece.origins, strict=True)
      text = ''.join(trace.paint(t, kind, colour) for t, kind in shown)
      print(text, end='', flush=True)
      last = piece
  except KeyboardInterrupt:
    print(' (interrupted)', end='')
  except (UserError, FloatingPointError) as error:
    talker.says.pop()
    raise UserError(str(error)) from error
  end = time.perf_counter()
  print()
  talker.answers.append(tokens)
  if last is None:
    return
  parts = [f'{len(tokens)} tokens']
  if last.whole is not None:
    parts.append(f'{last.whole.tau:.2f} a target call')
  if len(tokens) > early:
    parts.append(f'{(len(tokens) - early) / (end - first):.0f} a second')
  parts.append(f'the first after {first - begin:.2f} s')
  how = talker.planned.name if talker.speculates else 'plain'
  print(f'[{how}: {", ".join(parts)}]')


def hear(shows: bool) -> str | None:
  """Returns what the user says next; None at the end of the input."""
  try:
    said = input('> ' if shows else '')
  except EOFError:
    return None
  if not shows:
    print(f'> {said}')
  return said.strip()


def obey(talker: Talker, said: str) -> None:
  """Does what a command says."""
  if said == '/reset':
    talker.reset()
    print('(all that was said is forgotten)')
  elif said == '/plain':
    talker.speculates = not talker.speculates
    how = f'drafts of {talker.planned.name}' if talker.speculates else 'plain'
    print(f'(the next answers: {how})')
  else:
    print(f'(no command is called {said}: /plain, /reset and /quit are)')


def talk(talker: Talker, first: str = '') -> None:
  """Hears and answers until the input ends.

  Args:
    talker: who answers.
    first: what is said before anything is heard, if it is not empty.
  """
  terminals = sys.stdin.isatty(), sys.stdout.isatty()
  if terminals[1]:
    print(f'{trace.legend()}   /plain /reset /quit')
  said: str | None = first
  if first:
    print(f'> {first}')
  while True:
    try:
      said, first = first or hear(terminals[0]), ''
    except KeyboardInterrupt:
      print('\n(/quit ends the program)')
      continue
    if said is None or said == '/quit':
      break
    if said.startswith('/'):
      obey(talker, said)
    elif said:
      talker.says.append(said)
      try:
        speak(talker, terminals[1])
      except UserError as error:
        print(f'({error})')
  if said is None and terminals[0]:
    print()


def main(x: Experiment) -> None:
  first = x.prompt
  single_model.choose(x, 'a conversation')
  x.batch = 1
  signal.set_wakeup_fd(-1)  # Ctrl-C ends an answer.
  talk(Talker(**vars(single_model.load(plan(x)))), first)


def start() -> None:
  command.run(main, Experiment)
