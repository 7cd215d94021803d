"""One file for each published table.

Where a config has a path such as `google-t5/t5-small`, that is both a name on
the Hugging Face Hub and a folder: fetch it to there with

  hf download google-t5/t5-small --local-dir google-t5/t5-small

or name another place with `--config.target.path=...`. Data sets of the hub
need the extra `datasets`; with `--config.prompts.path=FILE` and
`--config.prompts.dataset=` a file is read. `python -m experiments.tables
--config FILE` prints the paper beside what a run has found, before a run too.
"""

from experiments.errors import UserError
from experiments.settings import Candidate, Prompts

TASKS = {
  'wmt': Prompts(dataset='wmt/wmt14:de-en', count=100),
  'cnn': Prompts(dataset='abisee/cnn_dailymail:3.0.0', count=100),
  'xsum': Prompts(dataset='EdinburghNLP/xsum', count=100),
  'gsm8k': Prompts(dataset='openai/gsm8k:main', count=100),
  'humaneval': Prompts(dataset='openai/openai_humaneval', count=100),
}


def lm(path: str, gamma: int) -> Candidate:
  """A language model that drafts a chain."""
  return Candidate('lm', gamma, path)


def tree(path: str, gamma: int, *widths: int, replacement: bool) -> Candidate:
  """A language model that drafts a tree."""
  options = {'widths': widths, 'replacement': replacement}
  return Candidate('lm', gamma, path, options)


def head(kind: str, path: str, gamma: int, *rules: str, **options) -> Candidate:
  """A head on the target's features that `experiments.train` has trained."""
  return Candidate(kind, gamma, path, options, rules)


# What the heads of papers need, whose layouts are not those of this project.
OWN_HEADS = (
  'heads for it that experiments.train has made (published ones are in other '
  'layouts)'
)
MT_BENCH = 'question.jsonl of MT-Bench'


def task(part: str, parts) -> str:
  """The part of a config that was asked for.

  Raises:
    ValueError: there is none of this name.
  """
  if part not in parts:
    raise UserError(f'the parts are {", ".join(parts)}, got {part!r}')
  return part
