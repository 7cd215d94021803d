"""Compiled programs are kept for the next start."""

import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring
from jax.experimental.compilation_cache import compilation_cache

from experiments.step_costs import StepCosts
from specjax.bench import results
from specjax.bench.config import Certificate, Experiment, Mesh
from specjax.cli import compilation_cache as kept_programs
from specjax.errors import UserError
from specjax.training.recipes import Heads, Recipe
from tests.support import processes, tiny

_OPTIONS = (
  'jax_enable_compilation_cache',
  'jax_compilation_cache_dir',
  'jax_compilation_cache_max_size',
  'jax_persistent_cache_min_compile_time_secs',
)


NONE = {'taken': 0, 'compiled': 0}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  """The user's folder of caches; jax is as it was before, afterwards."""
  before = {name: getattr(jax.config, name) for name in _OPTIONS}
  jax.config.update('jax_enable_compilation_cache', True)
  jax.config.update('jax_compilation_cache_dir', None)  # A variable may say so.
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'caches'))
  monkeypatch.setattr(kept_programs, '_SECONDS', 0.0)
  yield tmp_path / 'caches'
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


def start() -> dict[str, int]:
  """Counts the programs that a new process compiles, and those it takes."""
  jax.clear_caches()
  compilation_cache.reset_cache()
  x, counts = jax.device_put(jnp.zeros(7)), dict(NONE)
  names = {
    '/jax/compilation_cache/cache_hits': 'taken',
    '/jax/compilation_cache/cache_misses': 'compiled',
  }

  def listen(event, **facts):
    del facts  # Unused.
    if event in names:
      counts[names[event]] += 1

  monitoring.register_event_listener(listen)
  jax.jit(lambda x: jnp.cos(x) * 3 + x[::-1])(x).block_until_ready()
  monitoring.unregister_event_listener(listen)
  return counts


def programs(folder) -> list[pathlib.Path]:
  return [*folder.rglob('*-cache')]


def test_the_second_start_takes_them_from_the_users_folder(home):
  kept_programs.switch_on(Certificate())
  assert start() == {'taken': 0, 'compiled': 1}
  assert programs(home / 'specjax' / 'programs' / kept_programs.processor())
  assert start() == {'taken': 1, 'compiled': 0}


def test_a_folder_can_be_named_and_has_a_part_for_each_processor(
  monkeypatch, home, tmp_path
):
  """Another one may lack instructions that programs have."""
  for name in ('own', 'other'):
    monkeypatch.setattr(kept_programs, 'processor', lambda name=name: name)
    kept_programs.switch_on(Certificate(compilation_cache=str(tmp_path / 'a')))
    assert start() == {'taken': 0, 'compiled': 1}
    assert programs(tmp_path / 'a' / name)
  assert not home.exists()


def test_they_are_not_kept_where_it_is_switched_off(home, tmp_path):
  for chosen in (kept_programs.OFF, ''):
    kept_programs.switch_on(Certificate(compilation_cache=chosen))
    assert start() == NONE
  # What jax was told stays.
  jax.config.update('jax_compilation_cache_dir', str(tmp_path / 'told'))
  kept_programs.switch_on(Certificate())
  assert jax.config.jax_compilation_cache_dir == str(tmp_path / 'told')
  jax.config.update('jax_enable_compilation_cache', False)
  kept_programs.switch_on(Certificate(compilation_cache=str(tmp_path / 'own')))
  assert start() == NONE
  assert not home.exists()


def test_processes_that_work_together_keep_none_unless_told(home, folder):
  mesh = Mesh(processes=2, coordinator='localhost:1')
  kept_programs.switch_on(tiny.experiment(folder, mesh=mesh))
  assert jax.config.jax_compilation_cache_dir is None
  kept_programs.switch_on(
    tiny.experiment(folder, mesh=mesh, compilation_cache=str(home))
  )
  assert jax.config.jax_compilation_cache_dir.startswith(str(home))


def test_where_nothing_can_be_written_a_line_says_so(
  tmp_path, monkeypatch, capsys
):
  """Nor below no home, which leaves no folder here."""
  (tmp_path / 'file').write_text('')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
  kept_programs.switch_on(Certificate())
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('compiled programs are not kept: ')
  assert str(tmp_path / 'file') in line
  assert 'compilation_cache' in line
  assert start() == NONE
  with pytest.raises(UserError, match=r'compilation_cache: .* name a folder'):
    kept_programs.switch_on(
      Certificate(compilation_cache=str(tmp_path / 'file'))
    )
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setattr('os.path.expanduser', lambda path: path)
  kept_programs.switch_on(Certificate())
  assert 'below no home' in capsys.readouterr().err
  assert jax.config.jax_compilation_cache_dir is None


def test_the_folder_is_bounded(home, monkeypatch):
  monkeypatch.setattr(kept_programs, '_BYTES', 4000)
  kept_programs.switch_on(Certificate())
  for size in range(2, 12):
    jax.jit(lambda x: jnp.sin(x) + 1)(jnp.zeros(size)).block_until_ready()
  files = programs(home)
  assert files
  assert sum(f.stat().st_size for f in files) <= 4000


def test_where_they_lie_decides_no_result(folder):
  for kind in (Experiment, Certificate, StepCosts, Recipe, Heads):
    assert kind.compilation_cache == kept_programs.AUTO
  for kind in (tiny.experiment(folder), Certificate()):
    before = results.settings_of(kind)
    kind.compilation_cache = 'elsewhere'
    assert results.settings_of(kind) == before


@pytest.mark.slow
def test_a_program_starts_from_them(folder, tmp_path):
  """The second start compiles nothing again that was worth keeping.

  A small program may take long enough to be kept at the second start alone.
  """
  made = []
  for _ in range(2):
    done = processes.run(
      'experiments.generate',
      '--config=configs/pair.py',
      f'--config.target.path={folder}/target',
      '--config.prompt=def f(',
      '--config.max_new_tokens=4',
      JAX_ENABLE_COMPILATION_CACHE='true',
      XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    made.append({f.name for f in programs(tmp_path)})
  first, second = made
  named = {name.partition('-')[0] for name in first}
  assert 'jit__step' in named
  assert first <= second
  assert not {name for name in second - first if name.startswith((*named,))}
