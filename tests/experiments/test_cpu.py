"""What is said of the processor that figures were made on."""

import copy
import dataclasses
import os
import types

import numpy as np
import pytest

from configs import certify, embedded_pair, quickstart
from experiments import step_costs
from specjax import checkpoints, native
from specjax.bench import meshes, results
from specjax.bench.config import Certificate, Mesh
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
  # A system that says nothing has a name.
  monkeypatch.setattr(cpu, 'facts', dict)
  assert cpu.name()


def test_rows_say_how_many_threads_xla_has(monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda process: {0, 1, 2})
  monkeypatch.delenv('NPROC', raising=False)
  found = results.conditions()
  assert (found['xla_threads'], found['device'][-9:]) == (3, ', 3 cores')
  for said, threads in (('', 3), ('1', 1), ('6', 6)):
    monkeypatch.setenv('NPROC', said)
    assert results.conditions()['xla_threads'] == threads
  # A system that does not say which cores a process may use, as macOS.
  monkeypatch.delenv('NPROC')
  monkeypatch.delattr(os, 'sched_getaffinity')
  monkeypatch.setattr(os, 'cpu_count', lambda: 5)
  assert results.conditions()['xla_threads'] == 5


_QUICK = quickstart.get_config()


@pytest.mark.parametrize(
  ('x', 'with_kernel', 'without'),
  [
    (_QUICK, True, False),
    (dataclasses.replace(_QUICK, timed=False), False, False),
    (dataclasses.replace(_QUICK, mesh=Mesh(model=2)), False, False),
    (dataclasses.replace(_QUICK, mesh=Mesh(2, 2)), False, False),
    (dataclasses.replace(_QUICK, mesh=Mesh(2, processes=2)), False, False),
    (dataclasses.replace(_QUICK, dtype='bfloat16'), True, False),
    (dataclasses.replace(_QUICK, dtype='float16'), False, False),
    (step_costs.get_config(), True, False),
    (step_costs.get_config('layouts'), False, False),
    (certify.get_config(), True, True),
    (embedded_pair.get_config(), False, False),
  ],
)
def test_whom_the_cores_are_given_to(monkeypatch, x, with_kernel, without):
  monkeypatch.setattr(native, 'claim_cores', lambda: given.append(x))
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  monkeypatch.setattr(cpu, 'add_xla_flags', lambda flags: given.append(flags))
  for there, expected in ((True, with_kernel), (False, without)):
    given = []
    monkeypatch.setattr(native, 'available', lambda there=there: there)
    meshes.use_cores(x)
    # A certificate sets flags of XLA as well.
    assert len(given) == expected * (1 + isinstance(x, Certificate))


@pytest.mark.parametrize(
  ('devices', 'flags'), [(1, ''), (0, f'--a --{meshes._SIMULATED}=2')]
)
def test_devices_that_were_named_have_the_cores(monkeypatch, devices, flags):
  monkeypatch.setattr(native, 'claim_cores', pytest.fail)
  monkeypatch.setattr(native, 'available', lambda: True)
  monkeypatch.setenv('XLA_FLAGS', flags)
  said = types.SimpleNamespace(jax_num_cpu_devices=devices)
  monkeypatch.setattr(meshes.jax, 'config', said)
  meshes.use_cores(_QUICK)


def test_files_are_looked_at_while_the_kernel_is_compiled(monkeypatch):
  x, done = copy.deepcopy(_QUICK), []
  x.target.path, x.draft.path = 'target.gguf', 'draft.gguf'
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  monkeypatch.setattr(native, 'begin', lambda: done.append('begun'))
  monkeypatch.setattr(native, 'available', lambda: not done.append('there'))
  monkeypatch.setattr(native, 'claim_cores', lambda: done.append('claimed'))
  monkeypatch.setattr(checkpoints, 'prepare', done.append)
  meshes.use_cores(x)
  assert done == ['begun', 'target.gguf', 'draft.gguf', 'there', 'claimed']


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
