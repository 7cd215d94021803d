"""From a plan to what runs: what files say is checked here, once.

First what they say without their weights, then the prompts, and only then
weights are read.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from specjax import checkpoints, prompts, verify
from specjax.bench import memory, meshes, user_drafters, vocabulary
from specjax.bench.methods import Loaded, assemble, make_drafter
from specjax.bench.plan import Plan, PlannedDrafter
from specjax.bench.sampling_stages import values
from specjax.checkpoints import Description, precision
from specjax.cli import hosts, progress
from specjax.drafters import lm, plain
from specjax.drafters.heads import files, published
from specjax.errors import UserError, blame, need
from specjax.models import layouts, uniform, variants
from specjax.models.layouts import Arranged
from specjax.prompts import Chosen, conversations
from specjax.types import Drafter, LoadedDrafter, Spec, Target


def describe(field: str, path: str) -> Description:
  """Describes a checkpoint without its weights.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  with blame(f'{field}: '):
    return checkpoints.describe(path)


def describe_draft(planned: PlannedDrafter) -> Description | None:
  """Describes the model of a drafter; None if it has no model of its own.

  Raises:
    UserError: it cannot be loaded; names the field.
  """
  if planned.describe is None:
    return None
  with blame(f'{planned.path_field}: '):
    return planned.describe(planned.path, **planned.options)


def describe_head(
  planned: PlannedDrafter, plan: Plan, target: Description
) -> files.Description | None:
  """Describes the head of a drafter; None if it is no head.

  Raises:
    UserError: it is damaged, or cannot be for this target; names the field.
  """
  host = Target(target.model, path=plan.target)
  if describe := planned.beside('describe_head'):  # It is the target's own.
    with blame(f'{planned.field}: '):
      return describe(host)
  if not planned.path:
    return None
  with blame(f'{planned.path_field}: '):
    return files.describe(planned.path, host)


def has_encoder(described: Description) -> bool:
  """Returns True where an encoder reads the prompts."""
  return described.model.config.encoder is not None


def room(plan: Plan, described: dict[str, Description]) -> int:
  """Returns how many tokens a prompt may have.

  They come before the new ones. Those of an encoder-decoder come before
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
  length = (not plan.prompt and plan.prompts.length) or 1
  apart = has_encoder(described['target'])
  taken = 1 if apart else length
  fields = 'max_new_tokens + 1' if apart else 'prompts.length + max_new_tokens'
  fitting = {
    'max_new_tokens': positions[name] - taken,
    'prompts.length': 0 if apart else positions[name] - plan.max_new_tokens,
  }
  found = [f'{field}={most}' for field, most in fitting.items() if most > 0]
  need(
    taken + plan.max_new_tokens <= positions[name],
    f'{fields} is {taken + plan.max_new_tokens}, but the {name} has '
    f'{positions[name]} positions: choose {" or ".join(found)}',
  )
  if not apart:
    return positions[name] - plan.max_new_tokens
  left = min(positions[n] for n, d in described.items() if has_encoder(d))
  need(
    length <= left,
    f'prompts.length is {length}, but an encoder has {left} positions: choose '
    f'prompts.length={left}',
  )
  return left


class Survey(NamedTuple):
  """The facts in the files of a plan, before weights are read.

  Attributes:
    tokenizer: of the target.
    described: the models, by name; drafts as 'draft <name>'.
    heads: the heads on the target's features, by the same names.
    shares: whether a draft has the target's vocabulary; None where the draft
      has no tokenizer that says so.
  """

  tokenizer: Any
  described: dict[str, Description]
  heads: dict[str, files.Description]
  shares: dict[str, bool | None]


def _tell_itself(one: PlannedDrafter, target: str) -> None:
  """Prints that a model drafts for itself as it is, where one does."""
  itself = one.path and os.path.realpath(one.path) == os.path.realpath(target)
  changed = one.options or one.read is not lm.load
  if itself and not changed:
    hosts.tell(
      f'warning: {one.path_field} is the target itself: a drafted token costs '
      'a step of the target, and nothing is saved; name a smaller model'
    )


def survey(
  plan: Plan, allow: Callable[..., Any] = lambda call, *args: call(*args)
) -> Survey:
  """Looks at the target's tokenizer and the models, without their weights.

  Args:
    plan: of the experiment.
    allow: makes every call that may be refused; it returns None for one that
      was, if it does not raise.

  Raises:
    UserError: a model cannot be loaded, or a draft has other tokens.
  """
  found = Survey(None, {}, {}, {})
  target = allow(describe, 'target.path', plan.target)
  if target is not None:
    found.described['target'] = target
    size = target.model.config.vocab_size
    eos = checkpoints.eos_ids(plan.target)
    spec = Spec(target.model, plain.make(), verify.token, eos)
    allow(values, plan.sampling, spec, 1, 1.0)
  tokenizer = allow(vocabulary.read, 'target.path', plan.target)
  if target is not None and tokenizer:
    allow(vocabulary.check_tokenizer, 'target.path', tokenizer, size)

  def compare(one: PlannedDrafter, draft: Description | None) -> None:
    name = f'draft {one.name}'
    if draft is not None:
      with blame():
        lm.check_encoder(target.model, draft.model, one.path_field)
    if not one.path or not tokenizer:
      return
    found.shares[name] = False
    known, other = vocabulary.compare(one, tokenizer, size, eos, draft)
    found.shares[name] = other is None if known else None
    if other is not None:
      found.described[name] = draft._replace(other=other)

  for one in plan.levels():
    draft = allow(describe_draft, one)
    if draft is not None:
      found.described[f'draft {one.name}'] = draft
    if target is None:
      continue
    _tell_itself(one, plan.target)
    head = allow(describe_head, one, plan, target)
    if head is not None:
      found.heads[f'draft {one.name}'] = head
    host = Target(target.model, path=plan.target, eos=eos)
    allow(vocabulary.check_reduced, one, host)
    allow(compare, one, draft)
  return found._replace(tokenizer=tokenizer)


def check_dtypes(plan: Plan, described: dict[str, Description]) -> None:
  """Refuses types that the device does not compute in.

  Prints one line where the device computes in them slowly.

  Raises:
    UserError: names the field.
  """
  narrow = []
  for who, name in plan.dtypes(described).items():
    field = 'dtype' if who == 'target' else f'dtype of the {who}'
    if reason := precision.refusal(name):
      raise UserError(f'{field} is {name}: {reason}')
    if name in precision.NARROW:
      narrow.append(name)
  if narrow and jax.default_backend() == 'cpu':
    hosts.tell(
      f'dtype: a CPU computes {" and ".join(dict.fromkeys(narrow))} as '
      'float32, with copies of the weights: more memory than float32 takes, '
      'and no less time; this shows what such a model says, not how fast it is'
    )


def _fewer(new_tokens: int) -> str:
  """Returns the other remedy against prompts that leave too few positions."""
  return f', or max_new_tokens={new_tokens}' if new_tokens > 0 else ''


def _most_that_fits(ids: list[int], size: prompts.Size, left: int) -> int:
  """Returns how many of a prompt's first tokens fit every model."""
  return conversations.longest(len(ids), lambda n: size(ids[:n]) <= left)


def read_prompts(
  plan: Plan, tokenizer, described: dict[str, Description]
) -> dict[str, Chosen]:
  """Returns the prompts by domain: those of `prompts`, or the one of `prompt`.

  Args:
    plan: of the experiment.
    tokenizer: of the target.
    described: the models that read them, by name.

  Raises:
    UserError: names the field and the remedy.
  """
  left, new = room(plan, described), plan.max_new_tokens
  size = vocabulary.size_of_prompts(described, left, new)
  length = prompts.length_of_windows(plan.prompts, left)
  if length is not None and not plan.prompt:
    # Before so many are looked for.
    sizes = length, plan.prompts.count
    load = memory.predict(plan, described, *sizes, compiles=False)
    memory.check(plan, described, *sizes, load)
  if plan.prompt:
    if plan.prompts.chat:
      conversations.check_template(tokenizer, plan.prompts)
    ids = prompts.encode(tokenizer, plan.prompts, [plan.prompt])
    taken, whose = size(ids), 'max_new_tokens leaves'
    remedy = f'shorten it{_fewer(new - (taken - left))}'
    if has_encoder(described['target']):
      whose, remedy = 'an encoder has', 'shorten it'
    need(
      ids and taken <= left,
      f'prompt has {taken} tokens; at least 1 is needed, and {whose} {left} of '
      f'the positions: {remedy}',
    )
    by_domain = {'prompt': Chosen([ids], 'the command line', 1)}
  else:
    form = plan.prompts
    by_domain = prompts.collect(form, tokenizer, left, plan.seed, new, size)
    while length is not None:
      windows = [ids for chosen in by_domain.values() for ids in chosen.texts]
      taken = max(map(size, windows))
      if taken <= left:
        break
      shorter = min(_most_that_fits(ids, size, left) for ids in windows)
      need(
        plan.prompts.length is None and shorter,
        f'prompts.length is {length}, and in the tokens of a draft such '
        f'prompts and max_new_tokens={new} take {taken - left} positions too '
        'many: '
        f'choose prompts.length={max(1, shorter)}'
        f'{_fewer(new - (taken - left))}',
      )
      length, form = shorter, dataclasses.replace(form, length=shorter)
      by_domain = prompts.collect(form, tokenizer, left, plan.seed, new, size)
  entries = described['target'].model.config.vocab_size
  for text in (t for chosen in by_domain.values() for t in chosen.said):
    vocabulary.check_prompt(text, entries)
  texts = {name: chosen.texts for name, chosen in by_domain.items()}
  vocabulary.check_overlaps(described, texts)
  return by_domain


def check_batch(plan: Plan, texts: Mapping[str, Chosen]) -> None:
  """Refuses a batch that the prompts of a domain, by its name, do not fill."""
  for domain, chosen in texts.items():
    field = 'batch' if len(plan.batches) == 1 else 'batches:'
    need(
      plan.batch <= len(chosen.texts),
      f'{field} {plan.batch} is more than the {len(chosen.texts)} prompts of '
      f'{domain}: raise prompts.count, or lower {field.rstrip(":")}',
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


@contextlib.contextmanager
def doubts(planned: PlannedDrafter, tell: bool = True) -> Iterator[None]:
  """Prints what is doubtful about a published head in one line each.

  Args:
    planned: the head, which is read meanwhile.
    tell: false where it was read, and all was said, before.
  """
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always', published.PairingWarning)
    yield
  for each in caught:
    if not issubclass(each.category, published.PairingWarning):
      warnings.warn_explicit(
        each.message, each.category, each.filename, each.lineno
      )
    elif tell:
      hosts.tell(f'warning: {planned.name}: {each.message}')


def _option(value: Any) -> Any | Callable[[Target], tuple[Drafter, Any]]:
  """An option as a loader takes it: what drafts for it, given its model."""
  if not isinstance(value, PlannedDrafter):
    return value

  def inner(target: Target):
    loaded = load_drafter(value, target)
    return make_drafter(value, loaded, value.gammas[0]), loaded.params

  return inner


def load_drafter(
  planned: PlannedDrafter, target: Target, tell: bool = True
) -> LoadedDrafter:
  """Loads a drafter with its weights, for every draft length.

  Args:
    planned: what to load.
    target: what it drafts for.
    tell: whether doubts about its weights are printed.

  Raises:
    UserError: it cannot be loaded; names the function.
  """
  options = {name: _option(value) for name, value in planned.options.items()}
  with doubts(planned, tell), blame(f'{planned.field}: {planned.load}: '):
    loaded = planned.read(target, planned.path, **options)
  need(
    isinstance(loaded, LoadedDrafter),
    f'{planned.field}: {planned.load} must return a specjax.LoadedDrafter, got '
    f'{type(loaded).__name__}',
  )
  placement = target.model.placement
  if placement is None:
    return loaded
  # Weights that are not on the mesh yet.
  placed = placement.put_whole(loaded.params)
  return dataclasses.replace(loaded, params=placed)


def tell_pairing(planned: PlannedDrafter, loaded: LoadedDrafter) -> None:
  """Prints that nothing says which weights a drafter was trained for."""
  if loaded.pairing:
    hosts.tell(
      f'{planned.name}: {loaded.pairing} pairing: no fingerprint says which '
      'weights it was trained for; of another target, its drafts are rejected'
    )


def check_rule(name: str, rule, drafter: Drafter, whose: str) -> None:
  """Refuses a rule that cannot take a drafter's kind of draft."""
  reason = rule.refuses(drafter)
  need(not reason, f'verifiers: {name} does not take {whose}: {reason}')


def check_bits(plan: Plan, target: Description) -> None:
  """Refuses a target whose rows have no bits of their own where they must.

  Raises:
    UserError: says why.
  """
  if plan.exact == 'bits':
    dtype = plan.dtypes({'target': target})['target']
    shapes = target.shapes(dtype, plan.form)
    mesh = plan.mesh.data * plan.mesh.model > 1
    _, reason = layouts.for_bits(target.model, shapes)
    reason = 'the model is on a mesh' if mesh else reason
    need(not reason, f'exact is bits, but {reason}: leave it out')
    slow = layouts.parting(target.model, shapes)
    if slow and jax.default_backend() == 'cpu':
      hosts.tell(
        f'exact is bits, but {slow}: every pass has {uniform.ROWS} rows, which '
        'takes a CPU many times as long'
      )


@progress.phase('loading')
def load_experiment(plan: Plan) -> Loaded:
  """Checks what the files of a plan say, loads weights, returns what runs.

  Layouts of weights are guessed: call `race` on what is returned before times
  are taken.

  Raises:
    UserError: names the field and the remedy.
  """
  meshes.make_placement(plan.mesh)  # Refused before anything is read.
  found = survey(plan)
  tokenizer, described = found.tokenizer, found.described
  plan = memory.choose_split(plan, described)
  mesh = meshes.make_placement(plan.mesh)
  check_dtypes(plan, described)
  meshes.check_heads(plan.mesh, described)
  texts = read_prompts(plan, tokenizer, described)
  vocabulary.tell(described, {n: chosen.texts for n, chosen in texts.items()})
  check_batch(plan, texts)
  prompt = max(chosen.longest for chosen in texts.values())
  count = max(len(chosen.texts) for chosen in texts.values())
  longest = prompt + plan.max_new_tokens
  # With rotary positions as this run has them: its programs are compiled here.
  exact = checkpoints.describe(plan.target, max_length=longest)
  described['target'] = exact
  check_bits(plan, exact)
  memory.refuse(plan, described, prompt, count)
  fetch_weights(plan)
  # Drafts first: a rule may refuse one, and they are the smaller weights.
  model = exact.model
  if mesh is not None:
    model = variants.place(model, mesh)
  if plan.form.blocks:
    model = variants.for_native(model)
  target = Target(
    model,
    path=plan.target,
    fingerprint=functools.partial(checkpoints.fingerprint, plan.target),
    max_length=longest,
    tokenizer=tokenizer,
    eos=checkpoints.eos_ids(plan.target),
    dtype=plan.dtypes(described)['target'],
    form=plan.form,
  )
  planned = plan.drafters
  drafts = {n: load_drafter(p, target) for n, p in planned.items()}
  for name, one in drafts.items():
    tell_pairing(planned[name], one)
  made = {
    (n, gamma): (make_drafter(p, drafts[n], gamma), drafts[n].params)
    for n, p in planned.items()
    for gamma in sorted({1, *p.gammas})
  }
  for name, one in planned.items():
    for gamma, rule in itertools.product(one.gammas, one.rules):
      drafter, _ = made[name, gamma]
      check_rule(rule, one.rules[rule], drafter, f'the drafter {name!r}')
  # On a mesh they are seen where the loop is traced.
  own = user_drafters.choose(planned, made) if mesh is None else {}
  text = next(iter(texts.values())).texts[0]
  begun = 1 if has_encoder(exact) else prompt
  user_drafters.check_shapes(model, own, text, begun + plan.max_new_tokens)
  read = checkpoints.load(
    plan.target, target.dtype, longest, mesh, form=plan.form
  )
  user_drafters.check_numbers(read, own, text)
  if plan.form.blocks:
    # The one layout that they have.
    forms = {layouts.NATIVE: Arranged(*read)}
  elif plan.exact == 'bits' and layouts.for_bits(*read)[0] == layouts.UNIFORM:
    forms = {layouts.UNIFORM: Arranged(uniform.uniform(model), read[1])}
  else:
    forms = layouts.arrange(*read)
    if plan.exact == 'bits':
      del forms[layouts.WHOLE]
  in_layouts = dict.fromkeys(forms, drafts)
  if layouts.NATIVE in forms and not plan.form.blocks:
    laid = dataclasses.replace(target, model=forms[layouts.NATIVE].model)
    in_layouts[layouts.NATIVE] = {
      n: load_drafter(p, laid) for n, p in planned.items()
    }
  return assemble(plan, target, texts, forms, in_layouts)
