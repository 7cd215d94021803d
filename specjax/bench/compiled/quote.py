"""Quotes an estimate for a device beside what was measured on this one.

A process of its own compiles, so that nothing that is timed here shares its
memory and its threads with compilers of other devices.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from specjax.bench import load
from specjax.bench.compiled import devices, estimate
from specjax.bench.config import Compiled, Mesh, OnDevice, Sizes
from specjax.bench.plan import Plan
from specjax.checkpoints.parameters import BITS_OF, FLOAT
from specjax.drafters import lm
from specjax.errors import UserError, need
from specjax.models import cache as caches

_DTYPES = 'bfloat16', 'float16', 'float32'
_LENGTH = 96  # tokens of a prompt, where the config does not say


def prepare(x: OnDevice, plan: Plan) -> dict[str, Compiled]:
  """Returns what to compile for each drafter; nothing without a device.

  Raises:
    UserError: the device is unknown, or too small; no drafter is a language
      model; or the types, weights or vocabularies cannot be estimated.
  """
  if not x.device:
    return {}
  devices.check(x.device, x.mesh)
  drafters = {
    name: one for name, one in plan.drafters.items() if one.read is lm.load
  }
  need(
    drafters,
    f'device: {x.device} is estimated for drafts that are language models '
    'alone: name one, or leave device out',
  )
  used = (plan.prompts.length or _LENGTH) + plan.max_new_tokens
  form = plan.form.weights
  need(
    form == FLOAT or form in BITS_OF,
    f'weights is {form}, which is estimated for no device: choose floats, int8 '
    'or int4, or leave device out',
  )
  described = load.survey(plan).described
  dtypes = plan.dtypes(described)
  dtype = dtypes['target']
  need(
    dtype in _DTYPES,
    f'dtype is {dtype}, which is estimated for no device: choose one of '
    f'{", ".join(_DTYPES)}, or leave device out',
  )
  mesh = Mesh(x.mesh.data, x.mesh.model, x.mesh.split_draft)
  found = {}
  for name, one in drafters.items():
    own = dtypes[f'draft {name}']
    need(
      own == dtype,
      f'{one.field}: {name} computes in {own} and the target in {dtype}, which '
      f'is estimated for no device: give it dtype={dtype}, or leave device out',
    )
    need(
      described[f'draft {name}'].other is None,
      f'{one.path_field}: {name} has another vocabulary than the target, which '
      'is estimated for no device: choose another draft, or leave device out',
    )
    gamma = max(one.gammas)
    found[name] = Compiled(
      device=x.device,
      target=Sizes(plan.target),
      draft=Sizes(one.path),
      dtype=dtype,
      weights=form,
      mesh=mesh,
      gamma=gamma,
      temperature=max(plan.temperatures),
      sampling=x.sampling,
      batch=plan.batch,
      used=used,
      slots=caches.round_slots(used + max(gamma, 3) + 1),
    )
    estimate.plan(found[name])
  return found


def words_of(config: Any, default: Any, where: str = '--') -> Iterator[str]:
  """Yields the words of a command line that make a config of a default."""
  for name, value in vars(config).items():
    before = getattr(default, name)
    if dataclasses.is_dataclass(value):
      yield from words_of(value, before, f'{where}{name}.')
    elif value != before:
      yield f'{where}{name}={value}'


def ask(x: Compiled) -> dict:
  """Returns the estimate of `specjax compiled`, which another process makes.

  Raises:
    UserError: that process failed, and has said why.
  """
  words = [sys.executable, '-m', 'specjax', 'compiled']
  words += words_of(x, Compiled())
  done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
  if done.returncode:
    raise UserError(f'device: nothing was estimated for {x.device}, see above')
  return json.loads(done.stdout.splitlines()[-1])


def beside(asks: Mapping[str, Compiled], row: Mapping[str, Any]) -> dict | None:
  """Returns the estimate for the drafter, gamma and tau of a row.

  None where the drafter has no language model, or there is no row.
  """
  if row.get('drafter') not in asks:
    return None
  asked = asks[row['drafter']]
  return ask(dataclasses.replace(asked, gamma=row['gamma'], tau=row['tau']))
