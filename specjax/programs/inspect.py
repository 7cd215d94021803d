"""Shows a pair of models, and what would be refused, before it is loaded.

  specjax inspect pair \\
    --target.path=TARGET --draft.path=DRAFT

Only `config.json`, the headers of the weights, the tokenizers and the prompts
are read. c, the cost of drafting a token in plain steps, is predicted as the
bytes of weights that a step of the draft reads over those of the target: on
small batches reading them is what a step costs.
"""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp

from specjax import prompts
from specjax.bench import load, memory, meshes, vocabulary
from specjax.bench.config import Experiment
from specjax.bench.plan import Plan, plan
from specjax.checkpoints import CheckpointError, Description
from specjax.checkpoints.parameters import WeightForm
from specjax.cli import command
from specjax.drafters.heads import files
from specjax.errors import UserError
from specjax.models.sharding import Placement

# Why a fact is not known.
_UNKNOWN = {
  'shares_vocabulary': 'unknown: it has no tokenizer',
  'stored_bytes': 'unknown: the Hub cannot be reached',
}


def facts(
  description: Description, placement: Placement, dtype: str, form: WeightForm
) -> dict:
  """Returns the sizes of one model, as it will be loaded onto a mesh."""
  config = description.model.config
  shapes = jax.eval_shape(description.model.init, jax.random.key(0))
  weights = jax.tree.leaves(shapes)
  held = description.shapes(dtype, form)
  (step, one), (_, two) = (
    memory.bytes_per_token(description.model, held, used) for used in (1, 2)
  )
  made = {
    'family': description.family,
    'parameters': sum(math.prod(w.shape) for w in weights),
    'layers': config.num_layers,
    'width': config.width,
    'positions': config.max_positions,
    'vocabulary': config.vocab_size,
    'stored_dtype': description.dtype,
    'stored_as': description.quantized,
    'stored_bytes': description.stored_bytes,
    'dtype': dtype,
    'bytes_per_device': memory.held_by(description, placement, dtype, form),
    'bytes_per_step': step,
    'cache_bytes_per_token': two - one,
  }
  if description.quantized is None:
    del made['stored_as']
  return made


def facts_of_head(head: files.Description, loader: str) -> dict:
  """Returns the sizes of a head on the target's features."""
  values = head._asdict()
  values['taps'] = ', '.join(map(str, head.taps)) or 'as its kind has them'
  values['bytes'] = head.parameters * jnp.dtype(head.dtype).itemsize
  kind = {'kind': values.pop('kind'), 'load': loader}
  return kind | {name: value for name, value in values.items() if value}


class Report:
  """Findings about a pair; a refusal is listed and does not end the program."""

  def __init__(self, plan: Plan):
    """Checks what files say as `load_experiment` does, without weights."""
    self.plan = plan
    self.refused: list[str] = []
    found = load.survey(plan, self.allow)
    self.plan = memory.choose_split(plan, found.described)
    self.described = found.described
    self.models = self.look(found)
    self.overlaps: dict[str, dict[str, float]] = {}
    self.prompts: dict[str, dict] = {}
    if 'target' in self.described and found.tokenizer:
      self.prompts = self.allow(self.collect, found.tokenizer) or {}
    self.held: memory.Load | None = None
    self.fit()

  def allow(self, call, *args):
    """Returns what a call returns; None if it is refused."""
    try:
      return call(*args)
    except (UserError, CheckpointError) as error:
      if str(error) not in self.refused:  # Of several drafts the same.
        self.refused.append(str(error))
      return None

  def look(self, found: load.Survey) -> dict[str, dict]:
    """Facts on each model, with what a draft shares and its c."""
    placement, models = meshes.plan_placement(self.plan.mesh), {}
    for who, description in found.described.items():
      split = placement if who == 'target' else placement.for_draft
      # A draft whose target is refused is shown in the type that it has alone.
      dtypes = self.plan.dtypes({'target': description} | found.described)
      one = models[who] = facts(description, split, dtypes[who], self.plan.form)
      if who == 'target' or who not in found.shares:
        continue
      one['c_predicted'] = (
        one['bytes_per_step'] / models['target']['bytes_per_step']
      )
      one['shares_vocabulary'] = found.shares[who]
      if description.other is not None:
        overlap = description.other.overlap
        one['shared_tokens'] = overlap.shared
        one['share_of_tokens'] = overlap.share
        one['pieces_per_token'] = overlap.spelled
    for one in self.plan.levels():
      who = f'draft {one.name}'
      if who in found.heads:
        models[who] = facts_of_head(found.heads[who], one.load)
    return models

  def collect(self, tokenizer) -> dict[str, dict]:
    """Facts on the prompts of each domain."""
    by_domain = load.read_prompts(self.plan, tokenizer, self.described)
    self.allow(load.check_batch, self.plan, by_domain)
    texts = {domain: chosen.texts for domain, chosen in by_domain.items()}
    self.overlaps = vocabulary.overlaps(self.described, texts)
    return {
      domain: {'prompts': len(chosen.texts), **chosen.facts()}
      for domain, chosen in by_domain.items()
    }

  def fit(self) -> None:
    """Checks that models, mesh and machine fit together."""
    self.allow(meshes.check_heads, self.plan.mesh, self.described)
    if self.plan.mesh.processes == 1:  # Others are not asked for theirs.
      self.allow(meshes.make_placement, self.plan.mesh)
    if 'target' in self.described:
      self.allow(load.check_dtypes, self.plan, self.described)
    entries = self.prompts.values()
    for compiles in (False, True) if entries else ():
      size = (
        max(x.get('longest_turn', x['longest']) for x in entries),
        max(x['prompts'] for x in entries),
      )
      held = memory.predict(self.plan, self.described, *size, compiles)
      self.held, before = held, len(self.refused)
      self.allow(memory.check, self.plan, self.described, *size, held)
      if len(self.refused) > before:
        return

  def show(self) -> None:
    """Prints everything; the last line is one JSON object."""
    for who, values in self.models.items():
      print(who)
      for note in values.get('notes', ()):
        print(f'  doubtful: {note}')
      for name, value in values.items():
        if name == 'notes':
          continue
        form = {int: ',', float: '.3f'}.get(type(value), '')
        value = _UNKNOWN.get(name) if value is None else value
        print(f'  {name.replace("_", " "):22} {value:{form}}')
    for domain, entry in self.prompts.items():
      print(f'prompts {domain}: {prompts.describe(entry["prompts"], entry)}')
    for who, shares in self.overlaps.items():
      print(f'{who}: {vocabulary.sentence(self.described[who].other, shares)}')
    held, mesh = None, self.plan.mesh
    if self.held:
      held = dataclasses.asdict(self.held) | {'total': self.held.total}
      print(f'each device of a mesh of {mesh.data} x {mesh.model}')
      for name, value in held.items():
        unknown = 'not known without devices'
        said = unknown if value is None else f'{value:,} bytes'
        print(f'  {name:22} {said}')
    for reason in self.refused:
      print(f'refused: {reason}')
    last = {
      'models': self.models,
      'prompts': self.prompts,
      'share_of_prompts': self.overlaps,
      'devices': len(jax.devices()),
      'mesh': mesh.facts(),
      'bytes_per_device': held,
      'refused': self.refused,
    }
    print(json.dumps(last))


def main(x: Experiment) -> None:
  report = Report(plan(x, sweeps=True))
  report.show()
  if report.refused:
    first, *others = report.refused
    more = f' (and {len(others)} more, see above)' if others else ''
    raise UserError(f'{first}{more}')


def start() -> None:
  command.run(main, Experiment)
