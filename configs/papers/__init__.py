"""One file for each paper: its published tables, and the runs that fill them.

  python -m experiments.tables --config configs/papers/leviathan.py:table3/wmt

This prints the paper's numbers beside those of a run of the same config, if
there is one. After the colon stand a table and a part of it; without a table
the first of the file is meant, without a part the first of the table.

Where a config has a path such as `google-t5/t5-small`, that is both a name on
the Hugging Face Hub and a folder: fetch it to there with

  hf download google-t5/t5-small --local-dir google-t5/t5-small

or name another place with `--config.target.path=...`. Data sets of the Hub
need the extra `datasets`; `--config.prompts.path=FILE` with
`--config.prompts.dataset=` reads a file instead.
"""

import dataclasses
from collections.abc import Callable, Iterable

from experiments.papers.published import Calculated, Published
from specjax.bench.config import Candidate, Checkpoint, Prompts
from specjax.errors import need

TASKS = {
  'wmt': Prompts(dataset='wmt/wmt14:de-en', count=100),
  'cnn': Prompts(dataset='abisee/cnn_dailymail:3.0.0', count=100),
  'xsum': Prompts(dataset='EdinburghNLP/xsum', count=100),
  'gsm8k': Prompts(dataset='openai/gsm8k:main', count=100),
  'humaneval': Prompts(dataset='openai/openai_humaneval', count=100),
}
# Chat models: what papers call them, and where they are.
CHAT = {
  'vicuna-7b': ('Vicuna-7B', 'lmsys/vicuna-7b-v1.3'),
  'vicuna-13b': ('Vicuna-13B', 'lmsys/vicuna-13b-v1.3'),
  'vicuna-33b': ('Vicuna-33B', 'lmsys/vicuna-33b-v1.3'),
  'llama2-7b': ('LLaMA2-Chat-7B', 'meta-llama/Llama-2-7b-chat-hf'),
  'llama2-13b': ('LLaMA2-Chat-13B', 'meta-llama/Llama-2-13b-chat-hf'),
  'llama2-70b': ('LLaMA2-Chat-70B', 'meta-llama/Llama-2-70b-chat-hf'),
}
# Published heads, by what their targets are called here. Where there is none,
# `heads` has one that `experiments.train` has made.
EAGLE_HEADS = {
  'vicuna-7b': 'yuhuili/EAGLE-Vicuna-7B-v1.3',
  'vicuna-13b': 'yuhuili/EAGLE-Vicuna-13B-v1.3',
  'vicuna-33b': 'yuhuili/EAGLE-Vicuna-33B-v1.3',
  'llama2-7b': 'yuhuili/EAGLE-llama2-chat-7B',
  'llama2-13b': 'yuhuili/EAGLE-llama2-chat-13B',
  'llama2-70b': 'yuhuili/EAGLE-llama2-chat-70B',
  'llama3-8b': 'yuhuili/EAGLE-LLaMA3.1-Instruct-8B',
}
EAGLE_3_HEADS = {
  'vicuna-13b': 'yuhuili/EAGLE3-Vicuna1.3-13B',
  'llama3-8b': 'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B',
  'llama3-70b': 'yuhuili/EAGLE3-LLaMA3.3-Instruct-70B',
  'deepseek-8b': 'yuhuili/EAGLE3-DeepSeek-R1-Distill-LLaMA-8B',
}
HEADS = (
  'its published heads, and where there are none those that experiments.train '
  'has made, in the folder heads'
)
LLAMA_68M = 'JackFram/llama-68m'
# EAGLE's tree is not printed; this one is ours.
EAGLE_WIDTHS = (4, 2, 2, 1, 1)


@dataclasses.dataclass(frozen=True)
class Paper:
  """The `get_config` of a paper: makes the config of one of its tables.

  Attributes:
    name: of its file in experiments/papers, without the ending.
    tables: name -> what makes the config, and the parts that it takes; ()
      where a table has none. The first table and the first part are those that
      are meant where none is named.
  """

  name: str
  tables: dict[str, tuple[Callable[..., Published | Calculated], Iterable[str]]]

  def arguments(self) -> list[str]:
    """Every table and part, as --config takes them behind the colon.

    A table that is alone needs no name.
    """
    alone = len(self.tables) == 1
    return [
      '/'.join(filter(None, ('' if alone else table, part)))
      for table, (_, parts) in self.tables.items()
      for part in tuple(parts) or ('',)
    ]

  def __call__(self, argument: str = '') -> Published | Calculated:
    """The config of `table/part`.

    Raises:
      UserError: the paper has no such table or part.
    """
    table, _, part = argument.partition('/')
    if table not in self.tables:
      table, part = next(iter(self.tables)), argument
    make, parts = self.tables[table]
    part = part or next(iter(parts), '')
    need(
      not part or part in parts,
      f'{self.name} takes {", ".join(self.arguments()) or "nothing"} behind '
      f'the colon, got {argument!r}',
    )
    x = make(part) if part else make()
    x.paper = self.name
    x.name = '_'.join(filter(None, (self.name, table, part)))
    if isinstance(x, Published):
      x.results = f'results/papers/{x.name}'
    return x


def lm(path: str, gamma: int) -> Candidate:
  """A language model that drafts a chain."""
  return Candidate('lm', gamma, path)


def tree(path: str, gamma: int, *widths: int, replacement: bool) -> Candidate:
  """A language model that drafts a tree."""
  options = {'widths': widths, 'replacement': replacement}
  return Candidate('lm', gamma, path, options)


def head(kind: str, path: str, gamma: int, *rules: str, **options) -> Candidate:
  """A head on the target's features, published or trained here."""
  return Candidate(kind, gamma, path, options, rules)


def beside_eagle(
  target: str, *names: str, nodes: int = 60
) -> dict[str, Candidate]:
  """Some of the drafters that papers compare with EAGLE's.

  Args:
    target: what it is called in `EAGLE_HEADS`, and its folder in `heads`.
    names: of the drafters.
    nodes: of the trees that are made anew at every step: ten are expanded at
      each of six levels, and so many kept.
  """
  medusa = f'heads/{target}/medusa'
  eagle = EAGLE_HEADS.get(target, f'heads/{target}/eagle1')
  eagle3 = EAGLE_3_HEADS.get(target, f'heads/{target}/eagle3')
  dynamic = {'beam': 10, 'nodes': nodes}
  every = {
    'sps': lm('double7/vicuna-68m', 7),
    'ngram': Candidate('ngram', 10),
    'recycling': head('recycling', '', 6, 'recursive', nodes=80),
    'medusa': head('medusa', medusa, 4, 'recursive', tree=64),
    'eagle': head('eagle', eagle, 5, 'recursive', widths=EAGLE_WIDTHS),
    'eagle2': head('eagle', eagle, 6, 'recursive', **dynamic),
    'eagle3': head('eagle', eagle3, 6, 'recursive', **dynamic),
  }
  return {name: every[name] for name in names}


def mt_bench(
  model: tuple[str, str], machine: str = 'a GPU with enough memory', **fields
) -> Published:
  """A table of trained heads on MT-Bench.

  Args:
    model: what the paper calls the target, and where it is.
    machine: that is needed.
    **fields: of the config.
  """
  name, path = model
  return Published(
    target=Checkpoint(path),
    prompts=Prompts(count=80),
    max_new_tokens=512,
    part={'target': name},
    needs=(name, HEADS, 'question.jsonl of MT-Bench', machine),
    **fields,
  )
