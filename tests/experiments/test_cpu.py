"""What is said of the processor that figures were made on."""

import dataclasses
import os

import numpy as np
import pytest

from configs import certify, embedded_pair, quickstart
from experiments import step_costs
from specjax import native
from specjax.bench import meshes, results
from specjax.bench.config import Mesh
from specjax.cli import cpu


@pytest.mark.parametrize(
  ('found', 'widest'),
  [
    (['SSE3', 'AVX', 'AVX2', 'AVX512F'], 'AVX-512'),
    (['X86_V3', 'X86_V4'], 'AVX-512'),  # numpy 2.4 has other names.
    (['AVX', 'AVX2'], 'AVX2'),
    (['X86_V3'], 'AVX2'),
    (['ASIMD'], 'NEON'),
    ([], ''),
  ],
)
def test_the_widest_vectors_are_those_that_programs_may_use(
  monkeypatch, found, widest
):
  said = {'SIMD Extensions': {'baseline': ['SSE'], 'found': found}}
  monkeypatch.setattr(np, 'show_config', lambda mode: said)
  # Whatever the operating system lists.
  monkeypatch.setattr(
    cpu, 'facts', lambda: {'model name': 'Fast', 'flags': 'avx2 avx512f'}
  )
  name = f'Fast, {widest}' if widest else 'Fast'
  assert (cpu.vectors(), cpu.name()) == (widest, name)
  assert results.conditions()['device'].startswith(name)


@pytest.mark.parametrize(
  ('said', 'threads'), [('', 3), ('1', 1), ('6', 6), (None, 3)]
)
def test_rows_say_how_many_threads_xla_has(monkeypatch, said, threads):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: {0, 1, 2})
  monkeypatch.setenv('NPROC', said or '')
  if said is None:
    monkeypatch.delenv('NPROC')
  assert results.conditions()['xla_threads'] == threads


@pytest.mark.parametrize('there', [True, False])
@pytest.mark.parametrize(
  ('config', 'kernel'),
  [
    ('experiment', True), ('untimed', False), ('mesh', False), ('speed', True),
    ('layouts', False), ('certificate', True), ('recipe', False),
  ],
)  # fmt: skip
def test_whom_the_cores_are_given_to(monkeypatch, config, kernel, there):
  """The kernel, where there is one."""
  x = {
    'experiment': quickstart.get_config(),
    'untimed': dataclasses.replace(quickstart.get_config(), timed=False),
    'mesh': dataclasses.replace(quickstart.get_config(), mesh=Mesh(model=2)),
    'speed': step_costs.get_config(),
    'layouts': step_costs.get_config('layouts'),
    'certificate': certify.get_config(),
    'recipe': embedded_pair.get_config(),
  }[config]
  given = []
  monkeypatch.setattr(native, 'available', lambda: there)
  monkeypatch.setattr(native, 'claim_cores', lambda: given.append(x))
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  monkeypatch.setattr(cpu, 'add_xla_flags', given.append)
  meshes.use_cores(x)
  asks = config == 'certificate'  # Whether or not there is one.
  assert bool(given) == (kernel and (there or asks))


def test_flags_that_xla_does_not_know_are_left_out(monkeypatch):
  monkeypatch.setenv('XLA_FLAGS', '--xla_cpu_enable_fast_math=false')
  assert not cpu.add_xla_flags('--xla_cpu_no_such_flag=1')
  assert os.environ['XLA_FLAGS'] == '--xla_cpu_enable_fast_math=false'
  assert cpu.add_xla_flags(cpu.FAST_XLA)
  assert os.environ['XLA_FLAGS'] == (
    f'--xla_cpu_enable_fast_math=false {cpu.FAST_XLA}'
  )
  monkeypatch.setattr(
    cpu.subprocess, 'run', lambda *_, **__: pytest.fail('run')
  )
  assert cpu.add_xla_flags(cpu.FAST_XLA)


def test_a_system_that_says_nothing_has_a_name(monkeypatch):
  monkeypatch.setattr(cpu, 'facts', dict)
  assert cpu.name()
