"""From a configuration to specs: everything is checked here, once.

Cheap checks come before weights are read, and every error names the field
and what would be right.
"""

import dataclasses
import importlib
import inspect
import itertools
import os
from typing import Any

import jax
import numpy as np

from experiments import prompts, vocabulary
from experiments.prompts import Chosen
from experiments.settings import Candidate, Experiment
from specjax import sampling, verify
from specjax.drafters import lm, plain
from specjax.models import checkpoints, transformer
from specjax.models.checkpoints import CheckpointError, Description
from specjax.types import Params, Rule, Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
  """A drafter with a rule and a draft length, ready to run."""

  drafter: str
  draft: str | None
  verifier: str
  gamma: int
  spec: Spec
  params: Params
  # The same drafter with K = 1, for many rows: what alpha is measured with.
  single: Spec
  single_params: Params


@dataclasses.dataclass(frozen=True)
class Built:
  """A checked experiment with its prompts, by domain, and its weights."""

  target: str
  tokenizer: Any
  prompts: dict[str, Chosen]
  plain: Spec
  plain_params: Params
  methods: tuple[Method, ...]

  @property
  def longest(self) -> int:
    """Tokens of the longest prompt."""
    return max(len(t) for chosen in self.prompts.values() for t in chosen.texts)


def resolve(field: str, name: str) -> Any:
  """The object of a full name such as 'specjax.verify.token'."""
  module, _, attribute = name.rpartition('.')
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, ValueError) as error:
    raise ValueError(
      f'{field}: {name!r} cannot be imported ({error}); give the full name of '
      "a function, such as 'specjax.drafters.ngram.load'"
    ) from error


def resolve_rule(name: str) -> Rule:
  """A rule by name; its arguments may stand behind a colon."""
  path, _, text = name.partition(':')
  rule = resolve('verifiers', path)
  wrong = None
  try:
    if not isinstance(rule, Rule):
      rule = rule(*(float(x) for x in text.split(',') if x))
    elif text:
      wrong = 'it takes no arguments'
  except ValueError as error:
    raise ValueError(f'verifiers: {name!r}: {error}') from error
  except TypeError as error:
    wrong = str(error)
  if wrong or not isinstance(rule, Rule):
    raise ValueError(
      f'verifiers: {name!r} is no rule ({wrong or type(rule).__name__}); use '
      'one such as specjax.verify.token, specjax.verify.block or '
      'specjax.verify.lenience:0.5'
    )
  return rule


def candidates(x: Experiment) -> dict[str, Candidate]:
  """The drafters to run, by name.

  Raises:
    ValueError: one is unknown.
  """
  chosen = {}
  for name in x.drafters or tuple(x.known):
    function, _, path = name.partition(':')
    if name in x.known:
      chosen[name] = x.known[name]
    elif '.' in function:
      label = os.path.basename(path.rstrip('/')) or function.split('.')[-2]
      chosen[label] = Candidate(function, 4, path)
    else:
      raise ValueError(
        f'drafters: {name!r} is unknown; choose from '
        f'{", ".join(x.known)}, or give a load function by its full '
        'name, with :path behind it'
      )
  return chosen


def path_field(x: Experiment, name: str) -> str:
  """How errors call the path of a drafter."""
  own = name == 'lm' and x.draft.path
  return 'draft.path' if own else f'path of the drafter {name}'


def _need(condition, message):
  if not condition:
    raise ValueError(message)


# Stages that name tokens: what they may name is known with the target.
_TOKENS = ('logit_bias', 'forbidden', 'min_new_tokens')


def _make_values(batch, temperature, stages, **known):
  try:
    return sampling.make(batch, temperature, **stages, **known)
  except ValueError as error:
    raise ValueError(f'sampling.{error}') from error


def values(
  x: Experiment, spec: Spec, batch: int, temperature
) -> sampling.Sampling:
  """The pipeline of an experiment, for rows of a spec.

  Args:
    x: the experiment.
    spec: whose vocabulary and ends of a text count.
    batch: rows.
    temperature: of all rows, or [B].

  Raises:
    ValueError: names the field that is out of range or contradicts another.
  """
  vocab_size = spec.target.config.vocab_size
  return _make_values(
    batch, temperature, vars(x.sampling), vocab_size=vocab_size, eos=spec.eos
  )


def check(x: Experiment) -> None:
  """Checks every value that can be checked without weights.

  Raises:
    ValueError: names the field, its value and the remedy.
  """
  _need(
    x.target.path,
    'target.path is empty: give the directory of a model with '
    '--config.target.path=...',
  )
  gammas = tuple(x.gammas) or tuple(c.gamma for c in candidates(x).values())
  for gamma in gammas:
    _need(
      isinstance(gamma, int) and gamma >= 1,
      f'gammas must be integers of at least 1, got {gamma!r}',
    )
  _need(x.temperatures, 'temperatures is empty: give at least one, such as 0')
  for temperature in x.temperatures:
    _need(
      np.isfinite(temperature) and temperature >= 0,
      f'temperatures must be finite and at least 0, got {temperature}',
    )
  stages = {k: v for k, v in vars(x.sampling).items() if k not in _TOKENS}
  _make_values(1, 1.0, stages)
  if not x.prompt:
    prompts.check(x.prompts)
  for field, value in (
    ('prompts.count', x.prompts.count),
    ('prompts.length', x.prompts.length),
    ('max_new_tokens', x.max_new_tokens),
    ('batch', x.batch),
  ):
    _need(
      value is None or value >= 1, f'{field} must be at least 1, got {value}'
    )
  _need(x.seed >= 0, f'seed must be at least 0, got {x.seed}')
  paths = {path_field(x, n): c.path for n, c in candidates(x).items()}
  for field, path in ({'target.path': x.target.path} | paths).items():
    _need(
      not path or os.path.exists(path),
      f'{field}: {path} does not exist; give a local directory, nothing is '
      'downloaded',
    )


def describe(field: str, path: str) -> Description:
  """A checkpoint without its weights.

  Raises:
    ValueError: it cannot be loaded; names the field.
  """
  try:
    return checkpoints.describe(path)
  except CheckpointError as error:
    raise ValueError(f'{field}: {error}') from error


def describe_draft(field: str, candidate: Candidate) -> Description | None:
  """A candidate without its weights, if it is a language model.

  Raises:
    ValueError: it cannot be loaded; names the field.
  """
  if resolve('candidates', candidate.load) is not lm.load:
    return None
  return describe(field, candidate.path)


def room(x: Experiment, described: dict[str, Description]) -> int:
  """Tokens that a prompt may have before the new ones.

  Args:
    x: the experiment.
    described: the models that read it, by name.

  Raises:
    ValueError: there is no place for any.
  """
  positions = {n: d.model.config.max_positions for n, d in described.items()}
  name = min(positions, key=positions.__getitem__)
  length = 1 if x.prompt else prompts.length_of_windows(x.prompts) or 1
  total = length + x.max_new_tokens
  _need(
    total <= positions[name],
    f'prompts.length + max_new_tokens is {total}, but the {name} has '
    f'{positions[name]} positions: shorten one of them',
  )
  return positions[name] - x.max_new_tokens


def survey(x: Experiment) -> tuple[Any, dict[str, Description]]:
  """The target's tokenizer and the models, by name, without their weights.

  Raises:
    ValueError: a model cannot be loaded, or a draft has other tokens.
  """
  described = {'target': describe('target.path', x.target.path)}
  vocab = described['target'].model.config.vocab_size
  tokenizer = checkpoints.load_tokenizer(x.target.path)
  vocabulary.check_tokenizer('target.path', tokenizer, vocab)
  for name, candidate in candidates(x).items():
    draft = describe_draft(path_field(x, name), candidate)
    if draft:
      described[f'draft {name}'] = draft
    if candidate.path:
      size = draft.model.config.vocab_size if draft else vocab
      vocabulary.check_draft(tokenizer, vocab, candidate.path, size)
  return tokenizer, described


def read_prompts(
  x: Experiment, tokenizer, described: dict[str, Description]
) -> dict[str, Chosen]:
  """The prompts by domain: those of `prompts`, or the one of `prompt`.

  Args:
    x: the experiment.
    tokenizer: of the target.
    described: the models that read them, by name.

  Raises:
    ValueError: names the field and the remedy.
  """
  left = room(x, described)
  if x.prompt:
    ids = prompts.encode(tokenizer, x.prompts.chat, x.prompt)
    _need(
      1 <= len(ids) <= left,
      f'prompt has {len(ids)} tokens; at least 1 is needed, and max_new_tokens '
      f'leaves {left} of the positions: change one of them',
    )
    found = {'prompt': Chosen([ids], 'the command line', 1)}
  else:
    found = prompts.collect(x.prompts, tokenizer, left, x.seed)
  size = described['target'].model.config.vocab_size
  for text in (t for chosen in found.values() for t in chosen.texts):
    vocabulary.check_prompt(text, size)
  return found


def _load(candidate: Candidate, target, depth: int):
  load = resolve('candidates', candidate.load)
  try:
    arguments = inspect.signature(load).bind(
      target, depth, path=candidate.path, **candidate.options
    )
  except TypeError as error:
    raise ValueError(f'candidates: {candidate.load}: {error}') from error
  return load(*arguments.args, **arguments.kwargs)


def _check_rules(x: Experiment, rules, chosen, drafts) -> None:
  """Refuses rules that cannot take a drafter's kind of draft."""
  for (name, candidate), rule in itertools.product(chosen.items(), rules):
    for gamma in x.gammas or (candidate.gamma,):
      reason = rules[rule].refuses(drafts[name, gamma][0])
      _need(
        not reason,
        f'verifiers: {rule} does not take the drafter {name!r}: {reason}',
      )


def _few_rows(rows: int) -> bool:
  """Whether weights in blocks pay: see `transformer.block`."""
  return jax.default_backend() == 'cpu' and rows <= 8


def build(x: Experiment) -> Built:
  """Checks the experiment, loads its weights and returns what runs.

  Raises:
    ValueError: names the field and the remedy.
  """
  check(x)
  rules = {name: resolve_rule(name) for name in x.verifiers}
  tokenizer, described = survey(x)
  texts = read_prompts(x, tokenizer, described)
  chosen = candidates(x)
  # Drafts first: a rule may refuse one, and they are the smaller weights.
  target = described['target'].model
  drafts = {
    (name, gamma): _load(candidate, target, gamma)
    for name, candidate in chosen.items()
    for gamma in {1, *(x.gammas or (candidate.gamma,))}
  }
  _check_rules(x, rules, chosen, drafts)
  eos = checkpoints.eos_ids(x.target.path)
  values(x, Spec(target, plain.make(), verify.token, eos), 1, 1.0)
  target, weights = many = checkpoints.load(x.target.path)
  nodes = max(drafter.nodes for drafter, _ in drafts.values())
  fast = drafts
  if _few_rows(x.batch * (nodes + 1)):
    target, weights = transformer.block(target, weights)
    fast = {
      (name, gamma): _load(chosen[name], target, gamma)
      for name, gamma in drafts
    }
  methods = []
  for name, candidate in chosen.items():
    single, single_params = drafts[name, 1]
    for gamma in x.gammas or (candidate.gamma,):
      drafter, params = fast[name, gamma]
      for rule_name, rule in rules.items():
        methods.append(
          Method(
            drafter=name,
            draft=os.path.basename(candidate.path.rstrip('/')) or None,
            verifier=rule_name.removeprefix('specjax.verify.'),
            gamma=gamma,
            spec=Spec(target, drafter, rule, eos),
            params=Params(weights, params),
            single=Spec(many[0], single, verify.observe, eos),
            single_params=Params(many[1], single_params),
          )
        )
  return Built(
    target=os.path.basename(x.target.path.rstrip('/')),
    tokenizer=tokenizer,
    prompts=texts,
    plain=Spec(target, plain.make(), verify.token, eos),
    plain_params=Params(weights, None),
    methods=tuple(methods),
  )
