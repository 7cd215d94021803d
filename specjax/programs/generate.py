"""Continues a prompt and shows where every token came from.

  specjax generate quickstart \\
    --prompt="def fib(n):"

Drafted and accepted tokens are green, corrected ones red and bonus tokens
yellow; without a terminal the text is plain. The first drafter, rule and
temperature of the experiment are used, and without a prompt the first one drawn
of `prompts.path`: of a conversation, with `prompts.turns=0`, every turn.
"""

import contextlib
import json
import sys

from specjax.bench import checks, trace
from specjax.bench.config import Experiment
from specjax.bench.load import load_experiment
from specjax.bench.methods import Loaded
from specjax.bench.plan import Plan, plan
from specjax.cli import command, hosts, progress
from specjax.errors import need
from specjax.models import prefill


def main(x: Experiment) -> None:
  need(
    x.mesh.data == 1,
    f'mesh.data is {x.mesh.data}, but one text is continued: leave it at 1, '
    'and split the models with mesh.model',
  )
  need(
    x.prompt or x.prompts.path or x.prompts.dataset,
    'prompt is empty: give --prompt="some text", or prompts.path',
  )
  x.batch = x.prompts.count = 1
  x.drafters = x.drafters[:1] or tuple(x.known)[:1]
  checks.check_mesh(x)  # Before other processes are waited for.
  hosts.join(x.mesh)
  with contextlib.redirect_stdout(hosts.primary_stdout()):
    show(plan(x))


def show(plan: Plan) -> None:
  """Prints the text as it is made; the last line is one JSON object."""
  colour = sys.stdout.isatty()
  built = load_experiment(plan)
  chosen = next(iter(built.prompts.values()))
  said = plan.prompt or built.target.tokenizer.decode(chosen.texts[0])
  made = [speak(built, chosen.texts[0], said, colour)]
  for talk in chosen.talks:
    while found := talk.prompt([one['tokens'] for one in made]):
      said = f'\n{talk.says[len(made)]}\n'
      made.append(speak(built, found[0], said, colour, len(made)))
  if colour:
    print(trace.legend())
  print(json.dumps({'turns': made} if chosen.talks else made[0]))


def speak(
  built: Loaded, prompt: list[int], said: str, colour: bool, turn: int = 0
) -> dict:
  """Prints what is said, and the answer as it is made."""
  plan, new = built.plan, []
  # The text of an encoder-decoder does not continue its prompt.
  (begun,), sources = prefill.split(built.plain.target.config, [prompt])
  ids = list(begun)
  shown = len(built.target.tokenizer.decode(ids))
  job = built.job([prompt], [turn], plan.temperatures[0])
  made = progress.until_first(
    'compiling until the first token', trace.steps(built.methods[0].way, job)
  )
  print(said, end='' if sources is None else '\n')
  for step in made:
    last = step.counts
    for token in trace.tokens(step):
      new.append(token.token)
      text = trace.piece(built.target.tokenizer, ids + new, shown)
      shown += len(text)
      print(trace.paint(text, token.origin, colour), end='', flush=True)
  print()
  drafted = int(last.drafted.sum())
  ended = bool(new) and new[-1] in built.plain.eos
  language = getattr(plan.sampling, 'constraint', None)
  if language is not None and not ended:
    print(
      f'(cut at max_new_tokens = {plan.max_new_tokens}: the beginning of a '
      f'text of {language.what}, and no whole one)'
    )
  return {
    'text': built.target.tokenizer.decode(new[:-1] if ended else new),
    'tokens': new,
    'ended': ended,
    'tau': len(new) / int(last.target_calls),
    'acceptance': int(last.accepted.sum()) / drafted if drafted else None,
  }


def start() -> None:
  command.run(main, Experiment)
