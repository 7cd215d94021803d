"""From a configuration to specs: everything is checked here, once.

Values first (`checks`), then what files say without their weights, then the
prompts, and only then weights are read.
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from experiments import devices, loading, prompts, vocabulary, weights
from experiments.checks import (
  candidates,
  check,
  draft_name,
  every_level,
  need,
  path_field,
  resolve,
  values,
)
from experiments.checks import rules as rules_of
from experiments.prompts import Chosen
from experiments.settings import Candidate, Experiment
from specjax import cache as caches
from specjax import generate, verify
from specjax.drafters import cascade, lm, plain, quantized
from specjax.models import checkpoints, linear, transformer
from specjax.models.checkpoints import CheckpointError, Description
from specjax.models.transformer import Model
from specjax.types import Drafter, Params, Rule, Spec, Target


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
  # And what counts the chance that the rule accepts its token.
  chance: generate.Parts = generate.PARTS
  # Fields of a row, see `weights.describe`.
  brings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


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

  def slots(self, new_tokens: int) -> tuple[int, int | None]:
    """Slots that serve every prompt and method: of texts, and of sources."""
    specs = [self.plain, *(m.spec for m in self.methods)]
    longest, sources = self.longest, None
    if has_encoder(self.plain.target):
      longest, sources = 1, caches.round_slots(longest)
    limit = longest + new_tokens
    return max(generate.slots_for(spec, limit) for spec in specs), sources


def has_encoder(target: Model) -> bool:
  """Whether prompts are read by an encoder, and the text begins anew."""
  return target.config.encoder is not None


def describe(field: str, path: str, quantized: bool = False) -> Description:
  """A checkpoint without its weights.

  Raises:
    ValueError: it cannot be loaded; names the field.
  """
  try:
    return checkpoints.describe(path, quantized=quantized)
  except CheckpointError as error:
    raise ValueError(f'{field}: {error}') from error


def describe_draft(field: str, candidate: Candidate) -> Description | None:
  """A candidate without its weights, if it is a language model.

  Raises:
    ValueError: it cannot be loaded; names the field.
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
    ValueError: there is no place for any.
  """
  positions = {n: d.model.config.max_positions for n, d in described.items()}
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
    ValueError: a model cannot be loaded, or a draft has other tokens.
  """
  described = {'target': describe('target.path', x.target.path)}
  vocab = described['target'].model.config.vocab_size
  tokenizer = checkpoints.load_tokenizer(x.target.path)
  vocabulary.check_tokenizer('target.path', tokenizer, vocab)
  for name, candidate in every_level(x).items():
    field = path_field(x, name)
    draft = describe_draft(field, candidate)
    if draft:
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
    ValueError: names the field and the remedy.
  """
  left = room(x, described)
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
      drafter = loading.make(candidate, drafts[name], gamma)
      reason = rules[name][rule].refuses(drafter)
      need(
        not reason,
        f'verifiers: {rule} does not take the drafter {name!r}: {reason}',
      )


def _chance(rule: Rule, single: Drafter) -> generate.Parts:
  """Parts that count the chance of a first token under a rule.

  For one candidate and an exact rule that chance has the mean of the overlap.
  """
  if rule.lossless and single.nodes == 1:
    return generate.PARTS
  return generate.PARTS._replace(overlap=verify.chance(rule))


def _few_rows(rows: int) -> bool:
  """Whether weights in blocks pay: see `transformer.block`."""
  return jax.default_backend() == 'cpu' and rows <= linear.FEW_ROWS


def keep_programs(folder: str) -> None:
  """Compiled programs are kept in a folder, and taken from there."""
  jax.config.update('jax_compilation_cache_dir', folder)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
  compilation_cache.reset_cache()  # It may be open elsewhere.


def predict(x: Experiment, described, texts: dict[str, Chosen]) -> devices.Load:
  """What each device will hold of models and prompts; see `devices`."""
  lengths = [len(t) for chosen in texts.values() for t in chosen.texts]
  rows = max(len(chosen.texts) for chosen in texts.values())
  return devices.predict(x, described, max(lengths), rows)


def build(x: Experiment) -> Built:
  """Checks the experiment, loads its weights and returns what runs.

  Raises:
    ValueError: names the field and the remedy.
  """
  check(x)
  if x.compilation_cache:
    keep_programs(x.compilation_cache)
  devices.check(x)
  rules = rules_of(x)
  layout = devices.make_layout(x.mesh)
  tokenizer, described = survey(x)
  devices.check_heads(x.mesh, described)
  texts = read_prompts(x, tokenizer, described)
  devices.check_memory(x, predict(x, described, texts))
  chosen = candidates(x)
  # Drafts first: a rule may refuse one, and they are the smaller weights.
  prompt = max(len(t) for found in texts.values() for t in found.texts)
  longest = prompt + x.max_new_tokens
  model = checkpoints.describe(x.target.path, max_length=longest).model
  if layout is not None:
    model = transformer.place(model, layout)
  eos = checkpoints.eos_ids(x.target.path)
  target = Target(
    model,
    path=x.target.path,
    fingerprint=checkpoints.fingerprint(x.target.path),
    max_length=longest,
    tokenizer=tokenizer,
    eos=eos,
  )
  drafts = {name: loading.load(c, target) for name, c in chosen.items()}
  _check_rules(x, rules, chosen, drafts)
  values(x, Spec(model, plain.make(), verify.token, eos), 1, 1.0)
  many = few = checkpoints.load(
    x.target.path, max_length=longest, layout=layout
  )
  # Plain decoding, and what drafts few tokens.
  if layout is None and _few_rows(x.batch):
    few = transformer.block(*many)
  methods = []
  for name, candidate in chosen.items():
    loaded = {many[0]: drafts[name]}
    single = loading.make(candidate, drafts[name], 1)
    for gamma in x.gammas or (candidate.gamma,):
      drafter = loading.make(candidate, drafts[name], gamma)
      form = few if _few_rows(x.batch * (drafter.nodes + 1)) else many
      if form[0] not in loaded:
        laid_out = dataclasses.replace(target, model=form[0])
        loaded[form[0]] = loading.load(candidate, laid_out)
      own = loaded[form[0]]
      drafter = loading.make(candidate, own, gamma)
      for rule_name, rule in rules[name].items():
        methods.append(
          Method(
            drafter=name,
            draft=draft_name(candidate),
            verifier=rule_name.removeprefix('specjax.verify.'),
            gamma=gamma,
            spec=Spec(form[0], drafter, rule, eos),
            params=Params(form[1], own.params),
            single=Spec(many[0], single, verify.observe, eos),
            single_params=Params(many[1], drafts[name].params),
            chance=_chance(rule, single),
            brings=weights.describe(candidate, own.params),
          )
        )
  return Built(
    target=os.path.basename(x.target.path.rstrip('/')),
    tokenizer=tokenizer,
    prompts=texts,
    plain=Spec(few[0], plain.make(), verify.token, eos),
    plain_params=Params(few[1], None),
    methods=tuple(methods),
  )
