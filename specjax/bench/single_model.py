"""The one pair of an experiment that answers whoever talks to it."""

import dataclasses
from typing import Any

import specjax
from specjax import prompts
from specjax.bench import memory, vocabulary
from specjax.bench.config import Experiment, Prompts
from specjax.bench.load import (
  check_bits,
  check_dtypes,
  check_rule,
  fetch_weights,
  load_drafter,
  room,
  survey,
  tell_pairing,
)
from specjax.bench.methods import make_drafter
from specjax.bench.plan import Plan, PlannedDrafter, need_one_device
from specjax.cli import progress
from specjax.errors import UserError, blame
from specjax.prompts import conversations
from specjax.types import Drafter, LoadedDrafter, Rule, Target


@dataclasses.dataclass
class Pair:
  """A target and the drafter that drafts for it.

  Attributes:
    plan: of the experiment.
    target: that answers.
    drafter: that drafts for it.
    made: the same at the draft length.
    form: how a conversation is written.
    room: tokens that a prompt may have.
    size: returns how many of them a prompt takes.
  """

  plan: Plan
  target: Target
  drafter: LoadedDrafter
  made: Drafter
  form: Prompts
  room: int
  size: prompts.Size

  @property
  def planned(self) -> PlannedDrafter:
    return next(iter(self.plan.drafters.values()))

  @property
  def rule(self) -> Rule:
    return next(iter(self.planned.rules.values()))


def choose_one(x: Experiment, what: str) -> None:
  """Leaves one drafter of an experiment.

  Args:
    x: is changed.
    what: runs, for the message.

  Raises:
    UserError: it wants several devices.
  """
  need_one_device(x.mesh, f'{what} runs')
  x.drafters = x.drafters[:1] or tuple(x.known)[:1]


def choose(x: Experiment, what: str) -> None:
  """Leaves one drafter and no prompts to collect."""
  choose_one(x, what)
  x.prompts.count = 1
  x.prompt = x.prompt or '...'


def form_of(x: Prompts, tokenizer: Any) -> Prompts:
  """The chat template where there is one, or a text that goes on.

  Raises:
    UserError: the template does not take what it is told, or is missing.
  """
  try:
    conversations.template_of(tokenizer, x)
    chat = True
  except UserError:
    chat = x.chat  # Which says so below.
  form = dataclasses.replace(x, chat=chat, turns=0)
  if chat:
    conversations.check_template(tokenizer, form)
  return form


@progress.phase('loading')
def load(plan: Plan, longest: int = 0) -> Pair:
  """Checks what files say, and reads weights.

  Args:
    plan: of the experiment.
    longest: tokens of a prompt whose rows have to fit into memory, as far as
      there is room for so many; 0: that is not looked at.

  Raises:
    UserError: names the field and the remedy.
  """
  found = survey(plan)
  described = found.described
  check_dtypes(plan, described)
  form = form_of(plan.prompts, found.tokenizer)
  left = room(plan, described)
  if longest:
    memory.refuse(plan, described, min(longest, left), plan.batch)
  check_bits(plan, described['target'])
  fetch_weights(plan)
  (planned,) = plan.drafters.values()
  with blame('target.path: '):
    target = specjax.load(
      plan.target,
      dtype=plan.dtypes(described)['target'],
      weights=plan.form.weights,
      rounds=plan.form.rounds,
      exact=plan.exact,
    )
  drafter = load_drafter(planned, target)
  tell_pairing(planned, drafter)
  made = make_drafter(planned, drafter, planned.gammas[0])
  name, rule = next(iter(planned.rules.items()))
  check_rule(name, rule, made, 'the drafter')
  if made.positions is not None:
    left = min(left, made.positions - plan.max_new_tokens)
  size = vocabulary.size_of_prompts(described, left, plan.max_new_tokens)
  return Pair(plan, target, drafter, made, form, left, size)
