"""A few texts of a few methods, each token with where it came from.

samples.jsonl in the results folder has one object per text. They are decoded
once more after everything was measured, so recording costs no measured time;
keys and prompts are those of the measurement, and so are the texts: of
conversations those of the first turn.
"""

import collections
import itertools
import json

from specjax.bench import measure, trace
from specjax.cli import hosts, progress
from specjax.models import prefill
from specjax.stats.folders import SAMPLE_KEY, SAMPLES, read_samples

METHODS = 2  # so many are shown: each compiles a program that records
CELLS = 4  # a text of so many domains and temperatures, of each of them
TOKENS = 64  # of each text
PROMPT = 32  # tokens of the end of a prompt that are shown
CONTEXT = 16  # tokens before a token that decide how it is written


def written(tokenizer, before: list[int], tokens: list[trace.Token]):
  """Tokens of a text as objects for JSON, pieces of text instead of ids.

  Args:
    tokenizer: of the target.
    before: ids that come before them.
    tokens: of one text.
  """
  ids, pieces = before[-CONTEXT:], []
  shown = len(tokenizer.decode(ids))
  for token in tokens:
    others = [
      {
        'text': tokenizer.decode(ids + other.tokens)[shown:],
        'chance': other.chance,
        'fate': other.fate,
      }
      for other in token.others
    ]
    ids.append(token.token)
    text = trace.piece(tokenizer, ids, shown)
    shown += len(text)
    pieces.append(
      {
        'text': text,
        'origin': token.origin,
        'chance': token.chance,
        'others': others,
      }
    )
  return pieces


def record(method, job: measure.Job, tokenizer) -> dict:
  """The first text of a job, up to so many tokens, and its prompt's end."""
  prompt, tokens, calls = job.prompts[0], [], 0
  for step in trace.steps(method.way, job):
    tokens += trace.tokens(step)
    calls += 1
    if len(tokens) >= TOKENS:
      break
  (begun,), sources = prefill.split(method.spec.target.config, [prompt])
  return {
    'index': int(job.indices[0]),
    'prompt': tokenizer.decode(prompt[-PROMPT:]),
    'whole_prompt': len(prompt) <= PROMPT,
    'continues': sources is None,
    'target_calls': calls,
    'tokens': written(tokenizer, list(begun), tokens),
  }


def choose(methods) -> list:
  """So many methods, of different drafters where there are enough."""
  seen = collections.Counter()
  turns = []
  for method in methods:
    turns.append((seen[method.drafter], len(turns), method))
    seen[method.drafter] += 1
  return [method for *_, method in sorted(turns, key=lambda t: t[:2])[:METHODS]]


def add(runner) -> list[dict]:
  """Records the texts that the folder of a `specjax run` lacks.

  Returns:
    All of them.
  """
  built, folder = runner.built, runner.folder
  recorded = hosts.broadcast(hosts.on_primary(lambda: read_samples(folder)))
  have = {tuple(sample[k] for k in SAMPLE_KEY) for sample in recorded}
  where = itertools.product(runner.prompts, runner.plan.temperatures)
  wanted = [
    (method, place, method.cell(*place))
    for place in itertools.islice(where, CELLS)
    for method in choose(built.methods)
  ]
  missing = [
    w for w in wanted if tuple(w[2][k] for k in SAMPLE_KEY) not in have
  ]
  if not missing:
    return recorded

  def sample(one):
    method, place, cell = one
    text = record(method, runner.units(*place)[0], built.target.tokenizer)
    return cell | {'lossless': method.spec.rule.lossless} | text

  specs = [method.spec for method, *_ in missing]
  made = measure.side_by_side(sample, missing, specs)
  with progress.phase('sample texts', len(missing)) as phase:
    for text in made:
      recorded.append(text)
      phase.advance()
  folder.write(SAMPLES, ''.join(json.dumps(s) + '\n' for s in recorded))
  return recorded
