"""From a configuration to specs: everything is checked here, once.

Values first (`checks`), then what files say without their weights, then the
prompts, and only then weights are read.
"""

import functools
import itertools
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiments import prompts
from experiments.errors import UserError, blame
from experiments.measuring.layouts import Guess
from experiments.measuring.methods import Built as Built
from experiments.measuring.methods import Loaded, assemble, has_encoder
from experiments.measuring.methods import Method as Method
from experiments.prompts import Chosen
from experiments.settings import Candidate, Experiment
from experiments.setup import drafter_loading, meshes, user_drafters, vocabulary
from experiments.setup.checks import (
  candidates,
  check,
  draft_lengths,
  every_level,
  need,
  path_field,
  resolve,
  values_for,
)
from experiments.setup.checks import rules as rules_of
from specjax import checkpoints, layouts
from specjax.checkpoints import CheckpointError, Description
from specjax.drafters import cascade, lm, quantized
from specjax.models import transformer
from specjax.types import Target


def describe(field: str, path: str, quantized: bool = False) -> Description:
  """A checkpoint without its weights.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  try:
    return checkpoints.describe(path, quantized=quantized)
  except CheckpointError as error:
    raise UserError(f'{field}: {error}') from error


def describe_draft(field: str, candidate: Candidate) -> Description | None:
  """A candidate without its weights, if it is a language model.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  load = resolve('candidates', candidate.load)
  if load in (lm.load, cascade.load):
    return describe(field, candidate.path)
  if load == quantized.load and candidate.path:
    return describe(field, candidate.path, quantized=True)
  return None


def room(x: Experiment, described: dict[str, Description]) -> int:
  """Tokens that a prompt may have.

  They come before the new ones; those of an encoder-decoder come before
  nothing, and its new tokens after the one that begins every text.

  Args:
    x: the experiment.
    described: the models that read it, by name.

  Raises:
    UserError: there is no place for any.
  """
  positions = {n: d.model.config.max_positions for n, d in described.items()}
  for field, gamma in draft_lengths(x):
    need(
      gamma < positions['target'],
      f'{field} is {gamma}, but the target has {positions["target"]} '
      'positions: draft less',
    )
  name = min(positions, key=positions.__getitem__)
  length = 1 if x.prompt else prompts.length_of_windows(x.prompts) or 1
  apart = has_encoder(described['target'].model)
  fields = 'max_new_tokens + 1' if apart else 'prompts.length + max_new_tokens'
  total = (1 if apart else length) + x.max_new_tokens
  need(
    total <= positions[name],
    f'{fields} is {total}, but the {name} has {positions[name]} positions: '
    'shorten one of them',
  )
  if not apart:
    return positions[name] - x.max_new_tokens
  left = min(positions[n] for n, d in described.items() if has_encoder(d.model))
  need(
    length <= left,
    f'prompts.length is {length}, but an encoder has {left} positions: choose '
    'less',
  )
  return left


def survey(x: Experiment) -> tuple[Any, dict[str, Description]]:
  """The target's tokenizer and the models, by name, without their weights.

  Raises:
    UserError: a model cannot be loaded, or a draft has other tokens.
  """
  described = {'target': describe('target.path', x.target.path)}
  vocab = described['target'].model.config.vocab_size
  values_for(x, vocab, checkpoints.eos_ids(x.target.path))
  tokenizer = vocabulary.read('target.path', x.target.path)
  vocabulary.check_tokenizer('target.path', tokenizer, vocab)
  for name, candidate in every_level(x).items():
    field = path_field(x, name)
    draft = describe_draft(field, candidate)
    if draft:
      with blame():
        lm.check_encoder(described['target'].model, draft.model, field)
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
    UserError: names the field and the remedy.
  """
  left = room(x, described)
  length = prompts.length_of_windows(x.prompts)
  if length is not None and not x.prompt:
    # Before so many are looked for.
    load = meshes.predict(x, described, length, x.prompts.count)
    meshes.check_memory(x, load)
  if x.prompt:
    ids = prompts.encode(tokenizer, x.prompts.chat, x.prompt)
    whose = 'max_new_tokens leaves'
    if has_encoder(described['target'].model):
      whose = 'an encoder has'
    need(
      1 <= len(ids) <= left,
      f'prompt has {len(ids)} tokens; at least 1 is needed, and {whose} {left} '
      'of the positions: change one of them',
    )
    found = {'prompt': Chosen([ids], 'the command line', 1)}
  else:
    found = prompts.collect(x.prompts, tokenizer, left, x.seed)
  size = described['target'].model.config.vocab_size
  for text in (t for chosen in found.values() for t in chosen.texts):
    vocabulary.check_prompt(text, size)
  return found


def _check_rules(x: Experiment, rules, chosen, drafts) -> None:
  """Refuses rules that cannot take a drafter's kind of draft."""
  for name, candidate in chosen.items():
    gammas = x.gammas or (candidate.gamma,)
    for gamma, rule in itertools.product(gammas, rules[name]):
      reason = rules[name][rule].refuses(drafts[name, gamma][0])
      need(
        not reason,
        f'verifiers: {rule} does not take the drafter {name!r}: {reason}',
      )


def keep_programs(folder: str) -> None:
  """Compiled programs are kept in a folder, and taken from there."""
  jax.config.update('jax_compilation_cache_dir', folder)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  compilation_cache.reset_cache()  # It may be open elsewhere.


def predict(x: Experiment, described, texts: dict[str, Chosen]) -> meshes.Load:
  """What each device will hold of models and prompts; see `devices`."""
  lengths = [len(t) for chosen in texts.values() for t in chosen.texts]
  rows = max(len(chosen.texts) for chosen in texts.values())
  return meshes.predict(x, described, max(lengths), rows)


def build(x: Experiment) -> Built:
  """Checks the experiment, loads its weights and returns what runs.

  Layouts of weights are guessed: who takes times calls `race` on it.

  Raises:
    UserError: names the field and the remedy.
  """
  check(x)
  if x.compilation_cache:
    keep_programs(x.compilation_cache)
  meshes.check(x)
  rules = rules_of(x)
  mesh = meshes.make_placement(x.mesh)
  tokenizer, described = survey(x)
  meshes.check_heads(x.mesh, described)
  texts = read_prompts(x, tokenizer, described)
  for domain, found in texts.items():
    need(
      x.batch <= len(found.texts),
      f'batch {x.batch} is more than the {len(found.texts)} prompts of '
      f'{domain}: raise prompts.count, or lower batch',
    )
  meshes.check_memory(x, predict(x, described, texts))
  chosen = candidates(x)
  # Drafts first: a rule may refuse one, and they are the smaller weights.
  prompt = max(len(t) for found in texts.values() for t in found.texts)
  longest = prompt + x.max_new_tokens
  model = checkpoints.describe(x.target.path, max_length=longest).model
  if mesh is not None:
    model = transformer.place(model, mesh)
  target = Target(
    model,
    path=x.target.path,
    fingerprint=functools.partial(checkpoints.fingerprint, x.target.path),
    max_length=longest,
    tokenizer=tokenizer,
    eos=checkpoints.eos_ids(x.target.path),
  )
  drafts = {name: drafter_loading.load(c, target) for name, c in chosen.items()}
  made = {
    (name, gamma): (
      drafter_loading.make(c, drafts[name], gamma),
      drafts[name].params,
    )
    for name, c in chosen.items()
    for gamma in sorted({1, *(x.gammas or (c.gamma,))})
  }
  _check_rules(x, rules, chosen, made)
  # On a mesh they are seen where the loop is traced.
  own = user_drafters.choose(chosen, made) if mesh is None else {}
  text = next(iter(texts.values())).texts[0]
  begun = 1 if has_encoder(model) else prompt
  user_drafters.check_shapes(model, own, text, begun + x.max_new_tokens)
  whole = checkpoints.load(x.target.path, max_length=longest, placement=mesh)
  user_drafters.check_numbers(whole, own, text)
  forms = layouts.arrange(*whole, x.batch)
  loaded = Loaded(x, target, texts, chosen, rules, drafts, forms)
  return assemble(loaded, Guess())
