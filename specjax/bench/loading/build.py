"""From a plan to specs: what files say is checked here, once.

First what they say without their weights, then the prompts, and only then
weights are read.
"""

import functools
import itertools
from typing import Any

from specjax import checkpoints, prompts
from specjax.bench.loading import (
  drafter_loading,
  dtypes,
  memory,
  memory_limits,
  meshes,
  user_drafters,
  vocabulary,
)
from specjax.bench.loading.checks import values_for
from specjax.bench.loading.layouts import Guess
from specjax.bench.loading.loaded import Loaded
from specjax.bench.loading.methods import Built as Built
from specjax.bench.loading.methods import Method as Method
from specjax.bench.loading.methods import assemble, has_encoder
from specjax.bench.loading.plan import Plan, PlannedDrafter
from specjax.checkpoints import CheckpointError, Description
from specjax.drafters import lm
from specjax.errors import UserError, blame, need
from specjax.models import layouts, transformer
from specjax.prompts import Chosen, conversations
from specjax.types import Target


def describe(field: str, path: str) -> Description:
  """A checkpoint without its weights.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  try:
    return checkpoints.describe(path)
  except CheckpointError as error:
    raise UserError(f'{field}: {error}') from error


def describe_draft(planned: PlannedDrafter) -> Description | None:
  """The model of a drafter without its weights; None where it tells of none.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  if planned.describe is None:
    return None
  try:
    return planned.describe(planned.path, **planned.options)
  except (CheckpointError, ValueError) as error:
    raise UserError(f'{planned.path_field}: {error}') from error


def room(plan: Plan, described: dict[str, Description]) -> int:
  """Tokens that a prompt may have.

  They come before the new ones; those of an encoder-decoder come before
  nothing, and its new tokens after the one that begins every text.

  Args:
    plan: of the experiment.
    described: the models that read it, by name.

  Raises:
    UserError: there is no place for any.
  """
  positions = {n: d.model.config.max_positions for n, d in described.items()}
  for field, gamma in plan.draft_lengths():
    need(
      gamma < positions['target'],
      f'{field} is {gamma}, but the target has {positions["target"]} '
      'positions: draft less',
    )
  name = min(positions, key=positions.__getitem__)
  length = 1 if plan.prompt else prompts.length_of_windows(plan.prompts) or 1
  apart = has_encoder(described['target'].model)
  fields = 'max_new_tokens + 1' if apart else 'prompts.length + max_new_tokens'
  total = (1 if apart else length) + plan.max_new_tokens
  need(
    total <= positions[name],
    f'{fields} is {total}, but the {name} has {positions[name]} positions: '
    'shorten one of them',
  )
  if not apart:
    return positions[name] - plan.max_new_tokens
  left = min(positions[n] for n, d in described.items() if has_encoder(d.model))
  need(
    length <= left,
    f'prompts.length is {length}, but an encoder has {left} positions: choose '
    'less',
  )
  return left


def target_of(plan: Plan, described: Description) -> Target:
  """The target without weights, as heads are compared with it."""
  return Target(described.model, path=plan.target)


def survey(plan: Plan) -> tuple[Any, dict[str, Description]]:
  """The target's tokenizer and the models, by name, without their weights.

  Raises:
    UserError: a model cannot be loaded, or a draft has other tokens.
  """
  described = {'target': describe('target.path', plan.target)}
  vocab = described['target'].model.config.vocab_size
  values_for(plan.sampling, vocab, checkpoints.eos_ids(plan.target))
  tokenizer = vocabulary.read('target.path', plan.target)
  vocabulary.check_tokenizer('target.path', tokenizer, vocab)
  for one in plan.levels():
    draft = describe_draft(one)
    name = f'draft {one.name}'
    drafter_loading.describe_head(one, target_of(plan, described['target']))
    if draft:
      model = described['target'].model
      with blame():
        lm.check_encoder(model, draft.model, one.path_field)
      described[name] = draft
    if one.path:
      eos = checkpoints.eos_ids(plan.target)
      _, other = vocabulary.compare(one, tokenizer, vocab, eos, draft)
      if draft and other:
        described[name] = draft._replace(other=other)
  return tokenizer, described


def read_prompts(
  plan: Plan, tokenizer, described: dict[str, Description]
) -> dict[str, Chosen]:
  """The prompts by domain: those of `prompts`, or the one of `prompt`.

  Args:
    plan: of the experiment.
    tokenizer: of the target.
    described: the models that read them, by name.

  Raises:
    UserError: names the field and the remedy.
  """
  left = room(plan, described)
  length = prompts.length_of_windows(plan.prompts)
  if length is not None and not plan.prompt:
    # Before so many are looked for.
    size = length, plan.prompts.count
    load = memory.predict(plan, described, *size, compiles=False)
    memory_limits.check(plan, described, *size, load)
  if plan.prompt:
    if plan.prompts.chat:
      conversations.check_template(tokenizer, plan.prompts)
    ids = prompts.encode(tokenizer, plan.prompts, [plan.prompt])
    whose = 'max_new_tokens leaves'
    if has_encoder(described['target'].model):
      whose = 'an encoder has'
    need(
      1 <= len(ids) <= left,
      f'prompt has {len(ids)} tokens; at least 1 is needed, and {whose} {left} '
      'of the positions: change one of them',
    )
    by_domain = {'prompt': Chosen([ids], 'the command line', 1)}
  else:
    by_domain = prompts.collect(
      plan.prompts, tokenizer, left, plan.seed, plan.max_new_tokens
    )
  size = described['target'].model.config.vocab_size
  for text in (t for chosen in by_domain.values() for t in chosen.said):
    vocabulary.check_prompt(text, size)
  texts = {name: chosen.texts for name, chosen in by_domain.items()}
  vocabulary.check_overlaps(described, texts, plan.max_new_tokens)
  return by_domain


def _check_rules(plan: Plan, drafts) -> None:
  """Refuses rules that cannot take a drafter's kind of draft."""
  for name, one in plan.drafters.items():
    for gamma, rule in itertools.product(one.gammas, one.rules):
      reason = one.rules[rule].refuses(drafts[name, gamma][0])
      need(
        not reason,
        f'verifiers: {rule} does not take the drafter {name!r}: {reason}',
      )


def fetch_weights(plan: Plan) -> None:
  """Fetches what is missing of models of the Hub.

  Raises:
    UserError: it cannot be fetched; names the field.
  """
  with blame('target.path: '):
    checkpoints.resolve(plan.target)
  for one in plan.levels():
    if one.path:
      with blame(f'{one.path_field}: '):
        # What describes no model is a head, whose weights may be pickled.
        checkpoints.resolve(one.path, of_head=one.describe is None)


def build(plan: Plan) -> Built:
  """Checks what the files of a plan say, loads weights, returns what runs.

  Layouts of weights are guessed: who takes times calls `race` on it.

  Raises:
    UserError: names the field and the remedy.
  """
  mesh = meshes.make_placement(plan.mesh)
  tokenizer, described = survey(plan)
  dtypes.check_device(plan, described)
  meshes.check_heads(plan.mesh, described)
  texts = read_prompts(plan, tokenizer, described)
  vocabulary.tell(described, {n: chosen.texts for n, chosen in texts.items()})
  for domain, chosen in texts.items():
    field = 'batch' if len(plan.batches) == 1 else 'batches:'
    need(
      plan.batch <= len(chosen.texts),
      f'{field} {plan.batch} is more than the {len(chosen.texts)} prompts of '
      f'{domain}: raise prompts.count, or lower {field.rstrip(":")}',
    )
  prompt = max(chosen.longest for chosen in texts.values())
  count = max(len(chosen.texts) for chosen in texts.values())
  longest = prompt + plan.max_new_tokens
  # With rotary positions as this run has them: its programs are compiled here.
  exact = checkpoints.describe(plan.target, max_length=longest)
  described['target'] = exact
  memory_limits.refuse(plan, described, prompt, count)
  fetch_weights(plan)
  # Drafts first: a rule may refuse one, and they are the smaller weights.
  model = exact.model
  if mesh is not None:
    model = transformer.place(model, mesh)
  target = Target(
    model,
    path=plan.target,
    fingerprint=functools.partial(checkpoints.fingerprint, plan.target),
    max_length=longest,
    tokenizer=tokenizer,
    eos=checkpoints.eos_ids(plan.target),
    dtype=dtypes.of_target(plan, described),
  )
  planned = plan.drafters
  drafts = {n: drafter_loading.load(p, target) for n, p in planned.items()}
  for name, one in drafts.items():
    drafter_loading.tell_pairing(planned[name], one)
  made = {
    (n, gamma): (drafter_loading.make(p, drafts[n], gamma), drafts[n].params)
    for n, p in planned.items()
    for gamma in sorted({1, *p.gammas})
  }
  _check_rules(plan, made)
  # On a mesh they are seen where the loop is traced.
  own = user_drafters.choose(planned, made) if mesh is None else {}
  text = next(iter(texts.values())).texts[0]
  begun = 1 if has_encoder(model) else prompt
  user_drafters.check_shapes(model, own, text, begun + plan.max_new_tokens)
  whole = checkpoints.load(plan.target, target.dtype, longest, mesh)
  user_drafters.check_numbers(whole, own, text)
  forms = layouts.arrange(*whole, min(plan.batch, *plan.batches))
  loaded = Loaded(plan, target, texts, drafts, forms)
  return assemble(loaded, Guess())
