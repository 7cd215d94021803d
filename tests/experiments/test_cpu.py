"""What is said of the processor that figures were made on."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from experiments.measuring import results
from experiments.setup import cpu


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


def test_a_system_that_says_nothing_has_a_name(monkeypatch):
  monkeypatch.setattr(cpu, 'facts', dict)
  assert cpu.name()


@pytest.mark.skipif(
  shutil.which('cc') is None
  or 'cpuid_fault' not in cpu.facts().get('flags', ''),
  reason='needs a C compiler, and a processor whose CPUID can fault',
)
def test_a_program_can_be_run_without_avx512(tmp_path):
  """And its figures say so; what it computes is right."""
  library = tmp_path / 'hide.so'
  source = pathlib.Path(__file__).parents[2] / 'benchmarks' / 'hide_avx512.c'
  flags = '-O2', '-Wall', '-Wextra', '-Werror', '-shared', '-fPIC'
  subprocess.run(['cc', *flags, '-o', library, source], check=True)
  program = (
    'import numpy as np; from experiments.setup import cpu, kept_programs; '
    'x = np.arange(4096.0).reshape(64, 64); '
    'print(cpu.vectors(), int((x @ x).sum()), kept_programs.processor())'
  )

  def run(**environment):
    done = subprocess.run(
      [sys.executable, '-c', program],
      env=os.environ | environment,
      capture_output=True,
      text=True,
    )
    if 'cannot be made to fault' in done.stderr:
      pytest.skip('the system does not let CPUID fault')
    assert not done.returncode, done.stderr
    return done.stdout.split()

  vectors, total, processor = run()
  hidden = run(LD_PRELOAD=str(library))
  assert vectors == cpu.vectors()
  assert hidden[:2] == ['AVX2', total]
  # Programs with AVX-512 are not taken where there is none.
  assert (hidden[2] == processor) == (vectors == 'AVX2')
