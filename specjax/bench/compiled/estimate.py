"""Estimates the speed of a pair on a device from its compiled programs.

Each program is compiled at two small depths of the target and of the draft.
What it consists of grows by the same amount with each layer, which gives the
counts of the real depths. `specjax.stats.roofline` makes times of these.
"""

import dataclasses
import operator
import pathlib
import tempfile
from collections.abc import Mapping

import jax

from specjax import trees
from specjax.bench import memory, meshes, sampling_stages
from specjax.bench.compiled import devices, hlo, programs
from specjax.bench.compiled.hlo import Counts
from specjax.bench.compiled.programs import Shapes
from specjax.bench.config import Compiled
from specjax.checkpoints import locate
from specjax.checkpoints.families import conversion
from specjax.checkpoints.files import CONFIG, read_json
from specjax.checkpoints.parameters import BITS_OF, FLOAT
from specjax.cli import progress
from specjax.drafters.heads import files
from specjax.errors import UserError, blame, need, writing
from specjax.models import cache as caches
from specjax.models import cache_attention, sharding, transformer, uniform
from specjax.models.config import TransformerConfig
from specjax.models.devices import FORMS
from specjax.models.sharding import Placement
from specjax.stats import roofline, theory

_WEIGHTS = '.safetensors', '.bin'
_MOST_CHIPS = 64
# Names of the dumps of a GPU's thunks.
_BEFORE, _AFTER = 'thunk_sequence', 'thunk_sequence_after_thunk_passes'
_NAMES = 'thunk_metadata'
ATTENTIONS = {
  'blocked': cache_attention.blocked,
  'padded': cache_attention.padded,
  'fused': cache_attention.fused('xla'),
  'cudnn': cache_attention.fused('cudnn'),
  'split': cache_attention.split,
}


def _llama(width, layers, heads, head, mlp) -> TransformerConfig:
  return TransformerConfig(
    128256, width, layers, heads, 8, head, mlp, 131072, rope_theta=5e5
  )


# Sizes that need no checkpoint, those of Llama 3. All have a head of their own,
# though Llama 3.2's 1B and 3B tie it to the embedding: they hold less.
SIZES: Mapping[str, TransformerConfig] = {
  '70b': _llama(8192, 80, 64, 128, 28672),
  '8b': _llama(4096, 32, 32, 128, 14336),
  '3b': _llama(3072, 28, 24, 128, 8192),
  '1b': _llama(2048, 16, 32, 64, 8192),
}


def read_sizes(field: str, path: str) -> TransformerConfig:
  """Returns the sizes that a path names; of a directory `config.json` is read.

  Raises:
    UserError: there is no such model, or it is no decoder.
  """
  if path in SIZES:
    return SIZES[path]
  with blame(f'{field}: '):
    place = locate(path)
    if any(file.suffix in _WEIGHTS for file in place.iterdir()):
      files.refuse(place)
    _, config = conversion.read_attributes(read_json(place / CONFIG))
  need(
    config.encoder is None,
    f'{field}: {path} is an encoder-decoder: give a decoder',
  )
  return config


def plan(x: Compiled) -> Shapes:
  """Checks a config, and returns its shapes on a mesh without devices.

  Raises:
    UserError: names the field and the remedy.
  """
  devices.check(x.device, x.mesh)
  need(x.programs, 'programs is empty: give at least one, such as plain')
  sampling_stages.check_stages(x.sampling)
  need(
    not x.sampling.constrains,
    'sampling: a constraint belongs to a tokenizer: leave it out',
  )
  x = dataclasses.replace(x, slots=caches.round_slots(x.slots))
  nodes = max(x.gamma, len(x.widths)) + 1
  need(
    x.used + nodes <= x.slots,
    f'used is {x.used}, but {x.slots} slots hold that and a draft of at most '
    f'{nodes} tokens not: choose slots={x.used + nodes}',
  )
  need(
    x.batch % x.mesh.data == 0,
    f'batch is {x.batch}, which mesh.data = {x.mesh.data} does not divide',
  )
  single = x.mesh.data * x.mesh.model == 1
  need(
    x.weights == 'floats' or single,
    f'weights is {x.weights}, but on a mesh they are floats: leave it out',
  )
  need(
    x.exact == 'auto' or single,
    'exact is bits, but the model is on a mesh: leave it out',
  )
  configs = [
    read_sizes(f'{name}.path', getattr(x, name).path)
    for name in ('target', 'draft')
  ]
  form = FORMS['gpu' if devices.is_gpu(x.device) else 'tpu']
  if x.attention:
    form = dataclasses.replace(form, attention=ATTENTIONS[x.attention])
  shapes = Shapes(x, *configs, meshes.plan_placement(x.mesh), form)
  if x.exact == 'bits':
    reason = uniform.refuses(transformer.build(shapes.target))
    need(not reason, f'exact is bits, but {reason}: leave it out')
  if x.layers:
    both = shapes.target.num_layers, shapes.draft.num_layers
    need(
      len(x.layers) == 2 and all(map(operator.le, x.layers, both)),
      f'layers is {tuple(x.layers)}: give two numbers, of the target and of '
      f'the draft, of at most {both}',
    )
    shapes = shapes.at_depth(x.layers)
  if x.mesh.split_draft is None:
    reads = [shapes.pass_of(place, 1).bytes for place in (0, 1)]
    drafts = [(configs[1].num_heads, reads[1])]
    split = memory.splits_draft(x.mesh.model, x.gamma, reads[0], drafts)
    where = dataclasses.replace(shapes.placement, split_draft=split)
    shapes = dataclasses.replace(shapes, placement=where)
  check_memory(shapes)
  return shapes


def check_memory(shapes: Shapes) -> None:
  """Refuses models that the memory of a chip does not hold.

  Raises:
    UserError: says how much is too much, and what fits.
  """
  x = shapes.asked
  limit = devices.chip_of(x.device).memory
  if (held := sum(shapes.held())) <= limit:
    return
  single = x.mesh.data * x.mesh.model == 1
  found = [
    f'weights={name}'
    for name in BITS_OF
    if single and sum(shapes.asking(weights=name).held()) <= limit
  ][:1]
  heads, floats = shapes.target.num_heads, shapes.asking(weights=FLOAT)
  for ways in (2**n for n in range(1, _MOST_CHIPS.bit_length())):
    mesh = sharding.plan_mesh(x.mesh.data, ways)
    where = Placement(mesh, split_draft=shapes.placement.split_draft)
    placed = dataclasses.replace(floats, placement=where)
    if heads % ways == 0 and sum(placed.held()) <= limit:
      device = devices.with_chips(x.device, x.mesh.data * ways)
      found.append(f'device={device} mesh.model={ways}')
      break
  raise UserError(
    f'device: target and draft take {held / 1e9:.1f} GB of each chip, '
    f'{(held - limit) / 1e9:.1f} GB more than the {limit / 1e9:.0f} GB of '
    f'{x.device}: choose {" or ".join(found) or "smaller models"}'
  )


def spans(x: Shapes, name: str):
  """Returns (phase, layer) -> slots that the walk over a cache covers."""
  used = x.asked.used
  if name == 'prefill':  # On average over the blocks of so long a prompt.
    used = programs.READ_AT_ONCE * ((used - 1) // programs.READ_AT_ONCE) // 2

  def span(phase: str, layer: int) -> int:
    config = x.draft if phase == 'propose' else x.target
    seen = memory.slots_seen(config, layer, used)
    return used - (used - seen) // 128 * 128

  return span


def compile_program(shapes: Shapes, name: str) -> Counts:
  """Compiles a program, and counts what it consists of.

  Beside the counts of a step there are `temporary` bytes, and those that a call
  lays out anew: `call weights` and `call caches`.
  """
  x = shapes.asked
  chip = devices.chip_of(x.device)
  program = programs.lower(shapes, name)
  with tempfile.TemporaryDirectory() as folder:
    options = devices.flags_of(x.device)
    if devices.is_gpu(x.device):
      options['xla_dump_to'] = folder
    try:
      made = program.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
      reason = str(error).partition('\n')[0]
      raise UserError(
        f'device: {x.device} cannot have {name} ({reason}); choose '
        'fewer slots or a smaller batch'
      ) from error
    dumped = {
      file.name.split('.')[-2]: file.read_text()
      for file in pathlib.Path(folder).glob('*.thunk_*.txt')
    }
  text = made.as_text()
  if x.texts:
    depth = f'{shapes.target.num_layers}-{shapes.draft.num_layers}'
    place = pathlib.Path(x.texts)
    with writing('texts', place):
      place.mkdir(parents=True, exist_ok=True)
      (place / f'{name}-{depth}.hlo').write_text(text)
      for kind, sequence in dumped.items():
        (place / f'{name}-{depth}.{kind}').write_text(sequence)
  module = hlo.Module(text)
  turns = hlo.turns_of(
    module, spans(shapes, name), x.gamma, shapes.widest(name)
  )
  per_cycle = chip.bandwidth / chip.clock if chip.clock else 0.0
  step, call = hlo.count(module, turns, per_cycle)
  for (what, *place), number in call.items():
    if what in ('weights', 'caches'):
      step[f'call {what}', *place] += number
  if dumped:
    sequence = dumped.get(_AFTER) or dumped[_BEFORE]
    step += hlo.count_thunks(module, sequence, dumped[_NAMES], turns)
  step['temporary', '', ''] = made.memory_analysis().temp_size_in_bytes
  return step


def count_program(shapes: Shapes, name: str) -> Counts:
  """Returns the counts of a program at its real depth."""
  both = shapes.target, shapes.draft
  depths = [programs.small_depths(config) for config in both]

  def at(*layers: int) -> Counts:
    with progress.phase(f'compiling {name}, {layers[0]} + {layers[1]} layers'):
      return compile_program(shapes.at_depth(layers), name)

  near = [close for close, _ in depths]
  first = at(*near)
  made = Counts(first)
  for place in range(1 + (name in programs.DRAFTING)):
    close, far = depths[place]
    if far == close:
      continue
    other = at(*near[:place], far, *near[place + 1 :])
    more = (both[place].num_layers - close) / (far - close)
    for key in {*first, *other}:
      made[key] += (other[key] - first[key]) * more
  # Memory that is used again may be less where there is more.
  place = 'temporary', '', ''
  made[place] = max(made[place], 0)
  return made


def estimate(x: Compiled) -> dict:
  """Compiles for a device, and returns what follows, for `reports.compiled`.

  Raises:
    UserError: as `plan`, before anything is compiled.
  """
  devices.stay_on_cpu()
  shapes = plan(x)
  chip, found = devices.chip_of(x.device), devices.open_topology(x.device)
  mesh = sharding.make_mesh(x.mesh.data, x.mesh.model, found)
  placement = dataclasses.replace(shapes.placement, mesh=mesh)
  placed = dataclasses.replace(shapes, placement=placement)
  counts = {name: count_program(placed, name) for name in x.programs}
  made, steps = {}, {}
  for name, one in counts.items():
    least = shapes.least(name, chip)
    # Without a walk over the cache in use all of its slots are read.
    walks = any(module.startswith(hlo.WALK) for *_, module in one)
    read = shapes if walks else shapes.unwindowed()
    step = roofline.step_of(chip, one, read.least(name, chip))
    steps[name] = step, least
    made[name] = _describe(chip, one, *steps[name])
  for name in counts if 'plain' in counts else ():
    if passes := shapes.passes(name):
      tau = _tau(x, name)
      for field, place in (('estimate', 0), ('limit', 1)):
        pair = steps['plain'][place], steps[name][place]
        made[name][field] = roofline.predict(*pair, passes, tau)
      made[name]['tau'] = tau
  return {
    'device': x.device,
    'mesh': x.mesh.facts() | {'split_draft': placement.split_draft},
    'target': x.target.path,
    'draft': x.draft.path,
    'layers': [shapes.target.num_layers, shapes.draft.num_layers],
    'dtype': x.dtype,
    'weights': x.weights,
    'batch': x.batch,
    'slots': shapes.asked.slots,
    'used': x.used,
    'gamma': x.gamma,
    'alpha': None if x.tau else x.alpha,
    'chip': chip._asdict(),
    'flags': devices.flags_of(x.device),
    'held': sum(shapes.held()),
    'programs': made,
  }


def _tau(x: Compiled, name: str) -> float:
  if name == 'tree':
    most = max(x.widths)
    chances = [x.alpha * (1 - x.alpha) ** i for i in range(most)]
    return theory.tree_tokens(trees.branching(x.widths), chances)
  return x.tau or float(theory.tokens_per_call(x.alpha, x.gamma))


def _describe(
  chip: roofline.Chip, counts: Counts, step: roofline.Step, least: roofline.Step
) -> dict:
  """Returns the numbers of a program that a report shows."""
  total: Counts = Counts()
  for (what, *_), number in counts.items():
    total[what] += number
  beyond = roofline.excess(chip, counts)
  largest = sorted(beyond, key=beyond.__getitem__, reverse=True)[:10]
  kept = (*roofline.PRICES, 'kernels', 'cycles', 'exchanged', 'temporary')
  return {
    **{what: round(total[what]) for what in kept},
    'copied_weights': round(total['call weights']),
    'copied_caches': round(total['call caches']),
    'collectives': {
      kind: round(total[kind]) for kind in hlo.COLLECTIVES if total[kind]
    },
    'seconds': step.seconds,
    'least_seconds': least.seconds,
    'largest': [[*place, beyond[place]] for place in largest],
  }
