"""What a pair of models is, and what would be refused, before it is loaded.

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

from specjax import checkpoints, prompts
from specjax.bench import load, memory, meshes, vocabulary
from specjax.bench.config import Experiment
from specjax.bench.loading import checks
from specjax.bench.plan import Plan, PlannedDrafter, plan
from specjax.checkpoints import CheckpointError, Description
from specjax.cli import command
from specjax.drafters import lm
from specjax.errors import UserError, blame
from specjax.models.sharding import Placement

# Why a fact is not known.
_UNKNOWN = {
  'shares_vocabulary': 'unknown: it has no tokenizer',
  'stored_bytes': 'unknown: the Hub cannot be reached',
}


def facts(description: Description, placement: Placement, dtype: str) -> dict:
  """Sizes of one model, as it will be loaded onto a mesh."""
  config = description.model.config
  shapes = jax.eval_shape(description.model.init, jax.random.key(0))
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), shapes)
  weights = jax.tree.leaves(shapes)
  step, cache = memory.bytes_per_token(description.model, shapes, 1)
  return {
    'family': description.family,
    'parameters': sum(math.prod(w.shape) for w in weights),
    'layers': config.num_layers,
    'width': config.width,
    'positions': config.max_positions,
    'vocabulary': config.vocab_size,
    'stored_dtype': description.dtype,
    'stored_bytes': description.stored_bytes,
    'dtype': dtype,
    'bytes_per_device': memory.of_parameters(config, placement, dtype),
    'bytes_per_step': step,
    'cache_bytes_per_token': cache,
  }


class Report:
  """What is found, and what is refused instead of ending the program."""

  def __init__(self, plan: Plan):
    """Checks what files say as `build` does, without weights."""
    self.plan = plan
    self.models: dict[str, dict] = {}
    self.refused: list[str] = []
    self.overlaps: dict[str, dict[str, float]] = {}
    self.described: dict[str, Description] = {}
    self.tokenizer = self.allow(vocabulary.read, 'target.path', plan.target)
    self.look('target', load.describe, 'target.path', plan.target)
    if 'target' in self.described:
      self.allow(self.name_tokens)
    for one in plan.levels():
      self.look(f'draft {one.name}', load.describe_draft, one)
      if 'target' in self.described:
        self.look_at_head(one)
      self.allow(self.compare, f'draft {one.name}', one)
    self.prompts = self.allow(self.collect) or {}
    self.load: memory.Load | None = None
    self.fit()

  def allow(self, call, *args):
    """What a call returns; None where it is refused."""
    try:
      return call(*args)
    except (UserError, CheckpointError) as error:
      self.refused.append(str(error))
      return None

  def look(self, who: str, call, *args) -> None:
    description = self.allow(call, *args)
    if description is not None:
      self.described[who] = description
      placement = meshes.plan_placement(self.plan.mesh)
      split = placement if who == 'target' else placement.for_draft
      # A draft whose target is refused is shown in the type that it has alone.
      names = self.plan.dtypes({'target': description} | self.described)
      self.models[who] = facts(description, split, names[who])

  def look_at_head(self, one: PlannedDrafter) -> None:
    """Shows a head on the target's features, which is no model of its own."""
    target = self.described['target']
    head = self.allow(load.describe_head, one, self.plan, target)
    if head is None:
      return
    values = head._asdict()
    values['taps'] = ', '.join(map(str, head.taps)) or 'as its kind has them'
    values['bytes'] = head.parameters * jnp.dtype(head.dtype).itemsize
    self.models[f'draft {one.name}'] = {
      'kind': values.pop('kind'),
      'load': one.load,
      **{name: value for name, value in values.items() if value},
    }

  def compare(self, who: str, one: PlannedDrafter) -> None:
    """Sets whether a draft shares the target's vocabulary, and its c.

    None where no tokenizer tells: the sizes are the same.
    """
    if 'target' not in self.models or not self.tokenizer or not one.path:
      return
    target, draft = self.models['target'], self.models.get(who, {})
    if who not in self.described:
      draft = {}  # A head has the target's vocabulary.
    if draft:
      models = (self.described[name].model for name in ('target', who))
      with blame():
        lm.check_encoder(*models, who)
    size = target['vocabulary']
    if draft:
      draft['c_predicted'] = draft['bytes_per_step'] / target['bytes_per_step']
      draft['shares_vocabulary'] = False
    eos = checkpoints.eos_ids(self.plan.target)
    found = self.described.get(who) if draft else None
    compared, other = vocabulary.compare(one, self.tokenizer, size, eos, found)
    if draft:
      draft['shares_vocabulary'] = (compared and other is None) or None
    if found and other:
      draft['shares_vocabulary'] = False
      draft['shared_tokens'] = other.overlap.shared
      draft['share_of_tokens'] = other.overlap.share
      draft['pieces_per_token'] = other.overlap.spelled
      self.described[who] = found._replace(other=other)

  def name_tokens(self) -> None:
    """Whether the tokens that `sampling` names are the target's."""
    size = self.models['target']['vocabulary']
    eos = checkpoints.eos_ids(self.plan.target)
    checks.values_for(self.plan.sampling, size, eos)

  def collect(self) -> dict:
    """Facts on the prompts of each domain."""
    if 'target' not in self.described or not self.tokenizer:
      return {}
    size = self.models['target']['vocabulary']
    vocabulary.check_tokenizer('target.path', self.tokenizer, size)
    by_domain = load.read_prompts(self.plan, self.tokenizer, self.described)
    texts = {domain: chosen.texts for domain, chosen in by_domain.items()}
    self.overlaps = vocabulary.overlaps(self.described, texts)
    return {
      domain: {'prompts': len(chosen.texts), **chosen.facts()}
      for domain, chosen in by_domain.items()
    }

  def fit_memory(self) -> None:
    """What each device will hold, and whether it has so much."""
    entries = self.prompts.values()
    size = (
      max(x.get('longest_turn', x['longest']) for x in entries),
      max(x['prompts'] for x in entries),
    )
    for compiles in (False, True):
      self.load = memory.predict(self.plan, self.described, *size, compiles)
      refused = len(self.refused)
      self.allow(memory.check, self.plan, self.described, *size, self.load)
      if len(self.refused) > refused:
        return

  def fit(self) -> None:
    """Whether the models and the mesh, and the mesh and this machine, fit."""
    self.allow(meshes.check_heads, self.plan.mesh, self.described)
    if self.plan.mesh.processes == 1:  # Others are not asked for theirs.
      self.allow(meshes.make_placement, self.plan.mesh)
    if 'target' in self.described:
      self.allow(load.check_dtypes, self.plan, self.described)
    if self.prompts:
      self.fit_memory()

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
      other = self.described[who].other
      if other is not None:
        print(f'{who}: {vocabulary.sentence(other, shares)}')
    held = None
    if self.load:
      held = dataclasses.asdict(self.load) | {'total': self.load.total}
      mesh = self.plan.mesh
      print(f'each device of a mesh of {mesh.data} x {mesh.model}')
      for name, value in held.items():
        told = (
          'not known without devices' if value is None else f'{value:,} bytes'
        )
        print(f'  {name:22} {told}')
    for reason in self.refused:
      print(f'refused: {reason}')
    print(
      json.dumps(
        {
          'models': self.models,
          'prompts': self.prompts,
          'share_of_prompts': self.overlaps,
          'devices': len(jax.devices()),
          'mesh': self.plan.mesh.facts(),
          'bytes_per_device': held,
          'refused': self.refused,
        }
      )
    )


def main(x: Experiment) -> None:
  report = Report(plan(x, sweeps=True))
  report.show()
  if report.refused:
    first, *others = report.refused
    more = f' (and {len(others)} more, see above)' if others else ''
    raise UserError(f'{first}{more}')


def start() -> None:
  command.run(main, Experiment)
