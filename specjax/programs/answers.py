"""Lets the target answer prompts: what a drafter of its own is trained on.

  specjax answers \\
    --target.path=TARGET --prompts.path=questions.jsonl

Any experiment's config will do. Its first drafter drafts, under an exact rule,
so the answers are the target's own whoever it is; `batch` rows are decoded at a
time and refilled. Every prompt is answered once at each temperature. The last
line names answers.jsonl, which `specjax train` reads as
`examples.prompts.path`: prompts and answers as text and as token ids, the
temperature, the seed, and whether the answer ended by itself. A program that
was stopped goes on with the same command, and an answer does not depend on
those beside it.
"""

import json
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from specjax import checkpoints, prompts
from specjax.bench import checks, results, sampling_stages, single_model
from specjax.bench.config import Experiment
from specjax.bench.plan import Plan, plan
from specjax.cli import command, progress
from specjax.errors import blame, need, writing
from specjax.loop import generate
from specjax.prompts import Chosen
from specjax.requests import continuous, pool
from specjax.stats import folders
from specjax.types import Params, Spec

FILE = 'answers.jsonl'
KEY = ('domain', 'prompt', 'temperature')


def read(file: pathlib.Path) -> list[dict]:
  """The answers that are there; a last line that was cut off is removed.

  Raises:
    UserError: another line is damaged.
  """
  if not file.exists():
    return []
  return [
    folders.read_object(line, f'{file}: line {number}', 'remove the line')
    for number, line in enumerate(folders.mend(file).splitlines(), 1)
  ]


def written(
  pair: single_model.Pair,
  domain: str,
  chosen: Chosen,
  temperature: float,
  places: list[int],
) -> Iterator[dict]:
  """Answers to prompts of a domain, in the order in which they end.

  Args:
    pair: who answers.
    domain: of the prompts.
    chosen: all of them.
    temperature: of the answers.
    places: of the prompts that are to be answered.
  """
  target, x = pair.target, pair.plan
  spec = Spec(target.model, pair.made, pair.rule, target.eos)
  texts = [chosen.texts[i] for i in places]
  longest = max(map(len, texts)) + x.max_new_tokens
  begun = continuous.decode(
    Params(target.params, pair.drafter.params),
    texts,
    spec=spec,
    new_tokens=x.max_new_tokens,
    key=generate.row_keys(x.seed, np.array(places)),
    values=sampling_stages.values(x.sampling, spec, len(texts), temperature),
    rows=x.batch,
    reads=pool.read_sizes(longest)[:-1],
  )
  for one in begun:
    need(
      one.finite,
      f'target.path: {x.target} gave logits that are no numbers after prompt '
      f'{places[one.prompt]} of {domain}: load it with --dtype=float32',
    )
    ids = texts[one.prompt]
    ended = bool(one.tokens) and one.tokens[-1] in target.eos
    yield {
      'domain': domain,
      'prompt': places[one.prompt],
      'temperature': temperature,
      'seed': x.seed,
      'asked': target.tokenizer.decode(ids),
      'answer': target.tokenizer.decode(one.tokens, skip_special_tokens=True),
      'prompt_ids': list(map(int, ids)),
      'answer_ids': list(map(int, one.tokens)),
      'ended': ended,
      'target_calls': int(one.counts.target_calls),
    }


def answer(x: Plan) -> None:
  """Writes what is missing; the last line is one JSON object."""
  with blame('target.path: '):
    own = {'target_fingerprint': checkpoints.fingerprint(x.target)}
  folders.check_place(pathlib.Path(x.results), x.settings | own)
  pair = single_model.load(x)
  chosen = prompts.collect(
    x.prompts,
    pair.target.tokenizer,
    pair.room,
    x.seed,
    x.max_new_tokens,
    pair.size,
  )
  folder = results.Folder(x.results, x.settings | own)
  file = folder.path / FILE
  there = read(file)
  done = {tuple(one[k] for k in KEY) for one in there}
  cells = [(d, t) for d in chosen for t in x.temperatures]
  total = sum(len(chosen[d].texts) for d, _ in cells)
  with (
    writing('results', file),
    open(file, 'a') as out,
    progress.phase('answers', total, done=len(there)) as phase,
  ):
    for domain, temperature in cells:
      count = range(len(chosen[domain].texts))
      left = [i for i in count if (domain, i, temperature) not in done]
      if not left:
        continue
      for one in written(pair, domain, chosen[domain], temperature, left):
        out.write(json.dumps(one) + '\n')
        out.flush()
        there.append(one)
        phase.advance()
    os.fsync(out.fileno())
  tokens = sum(len(one['answer_ids']) for one in there)
  calls = sum(one['target_calls'] for one in there)
  found = {
    'answers': str(file),
    'written': len(there),
    'ended': sum(one['ended'] for one in there) / len(there),
    'tokens': tokens,
    'tau': tokens / calls,
  }
  print(json.dumps(found))


def main(x: Experiment) -> None:
  need(
    not x.prompt,
    'prompt is given, but answers are written to many: name a file of them '
    'with prompts.path',
  )
  checks.need_one_turn(x.prompts)
  if x.prompts.path:
    prompts.files.check(x.prompts.path)
  single_model.choose_one(x, 'answering')
  planned = plan(x)
  one = next(iter(planned.drafters.values()))
  for name, rule in one.rules.items():
    need(
      rule.lossless,
      f"verifiers: {name} is lossy, so the answers would not be the target's: "
      'choose an exact one, such as token',
    )
  answer(planned)


def start() -> None:
  command.run(main, Experiment, resumes=True)
