"""From a configuration to specs: everything is checked here, once.

Cheap checks come before weights are read, and every error names the field
and what would be right.
"""

import dataclasses
import importlib
import inspect
import os
from typing import Any

import jax
import numpy as np

from experiments import corpus
from experiments.settings import Candidate, Experiment
from specjax import sampling, verify
from specjax.drafters import plain
from specjax.models import checkpoints, transformer
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
  """A checked experiment with its weights."""

  target: str
  tokenizer: Any
  plain: Spec
  plain_params: Params
  methods: tuple[Method, ...]


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
  try:
    if not isinstance(rule, Rule):
      rule = rule(*(float(x) for x in text.split(',') if x))
    elif text:
      raise ValueError('it takes no arguments')
  except (TypeError, ValueError) as error:
    raise ValueError(f'verifiers: {name!r}: {error}') from error
  if not isinstance(rule, Rule):
    raise ValueError(
      f'verifiers: {name!r} is no rule; use one such as specjax.verify.token, '
      'specjax.verify.block or specjax.verify.lenience:0.5'
    )
  return rule


def _candidates(x: Experiment) -> dict[str, Candidate]:
  """The drafters to run, by name."""
  chosen = {}
  for name in x.drafters or tuple(x.candidates):
    function, _, path = name.partition(':')
    if name in x.candidates:
      chosen[name] = x.candidates[name]
    elif '.' in function:
      label = os.path.basename(path.rstrip('/')) or function.split('.')[-2]
      chosen[label] = Candidate(function, 4, path)
    else:
      raise ValueError(
        f'drafters: {name!r} is unknown; choose from '
        f'{", ".join(x.candidates)}, or give a load function by its full '
        'name, with :path behind it'
      )
  return chosen


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
  gammas = tuple(x.gammas) or tuple(c.gamma for c in _candidates(x).values())
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
  unknown = set(x.prompts.domains) - set(corpus.DOMAINS)
  _need(
    x.prompts.domains and not unknown,
    f'prompts.domains must be some of {", ".join(corpus.DOMAINS)}, got '
    f'{tuple(x.prompts.domains)}',
  )
  for field, value in (
    ('prompts.count', x.prompts.count),
    ('prompts.length', x.prompts.length),
    ('max_new_tokens', x.max_new_tokens),
    ('batch', x.batch),
  ):
    _need(value >= 1, f'{field} must be at least 1, got {value}')
  _need(x.seed >= 0, f'seed must be at least 0, got {x.seed}')


def _same_vocabulary(tokenizer, path: str) -> None:
  """Where a draft has a tokenizer, it must be the target's."""
  if not os.path.exists(os.path.join(path, 'tokenizer.json')):
    return
  other = checkpoints.load_tokenizer(path).get_vocab()
  mine = tokenizer.get_vocab()
  different = [t for t in other if mine.get(t) != other[t]]
  _need(
    not different,
    f'draft {path} and target have different vocabularies ({len(different)} '
    f'tokens differ, such as {different[:1]}): they must share one',
  )


def _load(candidate: Candidate, target, depth: int):
  load = resolve('candidates', candidate.load)
  try:
    arguments = inspect.signature(load).bind(
      target, depth, path=candidate.path, **candidate.options
    )
  except TypeError as error:
    raise ValueError(f'candidates: {candidate.load}: {error}') from error
  return load(*arguments.args, **arguments.kwargs)


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
  target, weights = checkpoints.load(x.target.path)
  tokenizer = checkpoints.load_tokenizer(x.target.path)
  eos = checkpoints.eos_ids(x.target.path)
  limit = x.prompts.length + x.max_new_tokens
  _need(
    x.prompt or limit <= target.config.max_positions,
    f'prompts.length + max_new_tokens is {limit}, but the target has '
    f'{target.config.max_positions} positions: shorten one of them',
  )
  values(x, Spec(target, plain.make(), verify.token, eos), 1, 1.0)
  candidates = _candidates(x)
  gammas = tuple(x.gammas) or tuple(c.gamma for c in candidates.values())
  many = target, weights
  if _few_rows(x.batch * (max(gammas) + 1)):
    target, weights = transformer.block(target, weights)
  methods = []
  for name, candidate in candidates.items():
    if candidate.path:
      _same_vocabulary(tokenizer, candidate.path)
    single, single_params = _load(candidate, many[0], 1)
    for gamma in x.gammas or (candidate.gamma,):
      drafter, params = _load(candidate, target, gamma)
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
    plain=Spec(target, plain.make(), verify.token, eos),
    plain_params=Params(weights, None),
    methods=tuple(methods),
  )
