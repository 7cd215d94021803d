"""The main job on a tiny pair: rows, resume after a kill, bad logits."""

import contextlib
import dataclasses
import io
import json
import pathlib
import re
import signal
import time
import types

import numpy as np
import pytest

from specjax import native
from specjax.bench import costs, measure, results
from specjax.bench import runner as runner_module
from specjax.bench.config import Prompts
from specjax.bench.methods import Loaded, Race
from specjax.bench.plan import plan
from specjax.bench.runner import Runner, singles
from specjax.loop import generate
from specjax.models import layouts
from specjax.programs import run
from specjax.prompts import Chosen
from specjax.stats.row import SCHEMA
from tests.support import processes, scripted_run, tiny

THREE = Prompts(domains=('code',), count=3, length=16)
CONFIG = """
import pathlib
from tests.support import tiny

def get_config():
  return tiny.experiment(pathlib.Path({folder!r}))
"""


@pytest.mark.slow
def test_killed_run_resumes_and_keeps_its_rows(folder, tmp_path, capsys):
  (tmp_path / 'config.py').write_text(CONFIG.format(folder=str(folder)))
  x = tiny.experiment(
    folder, drafters=('ngram',), results=str(tmp_path / 'rows')
  )
  process = processes.start(
    *('-m', 'experiments.run', f'--config={tmp_path}/config.py'),
    *("--config.drafters=('ngram',)", f'--config.results={x.results}'),
  )
  file = tmp_path / 'rows' / 'rows.jsonl'
  deadline = time.monotonic() + 300
  while not (file.exists() and file.read_text().count('\n')):
    assert process.poll() is None, 'the run ended before it was killed'
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  kept = file.read_text().splitlines()[:1]
  # Whatever it wrote behind its first row was cut.
  file.write_text(f'{kept[0]}\n{{"schema": 1, "draf')

  run.main(x)
  rows = file.read_text().splitlines()
  assert rows[:1] == kept
  found = [json.loads(row) for row in rows]
  assert [r['temperature'] for r in found] == [0.0, 1.0]
  last = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert last['cells'] == 2
  speeds = [r['speedup'] for r in found if not r['impossible']]
  assert last['best'] is None or last['best']['speedup'] == max(speeds)

  run.main(x)
  assert 'complete' in capsys.readouterr().out
  assert file.read_text().splitlines() == rows


@pytest.fixture(scope='module')
def ran(folder, tmp_path_factory):
  """The rows of a run, and what it wrote to a log."""
  tiny.forget_loops()  # What other tests compiled would not be counted.
  out = str(tmp_path_factory.mktemp('rows') / 'a')
  x = tiny.experiment(folder, drafters=('ngram',), results=out)
  log = io.StringIO()
  with contextlib.redirect_stderr(log):
    runner = Runner(plan(x))
    runner.run()
  return runner.folder.rows, log.getvalue()


@pytest.mark.slow
def test_methods_that_do_not_fit_at_once_take_turns(
  folder, tmp_path, monkeypatch, ran
):
  """Programs are forgotten between parts of a run, and rows are the same."""
  monkeypatch.setattr(measure, 'crowded', lambda: True)
  monkeypatch.setattr(runner_module, '_AT_ONCE', 1)
  parts = []

  class Watched(Runner):
    def run_part(self):
      super().run_part()
      parts.append([m.drafter for m in self.part])

  x = tiny.experiment(folder, results=str(tmp_path / 'a'))
  runner = Watched(plan(x))
  runner.run()
  assert parts == [['draft'], ['ngram']]
  assert runner.complete()
  rows, _ = ran
  made = {(r['drafter'], r['temperature']): r for r in runner.folder.rows}
  assert len(made) == 2 * len(rows) == 4
  both = {'whole'} | ({'native'} if native.available() else set())
  for temperature in (0.0, 1.0):
    drafting = made['draft', temperature]['drafting']
    assert drafting['seconds_per_step'].keys() == both
  for row in rows:
    again = made[row['drafter'], row['temperature']]
    for field in ('tau', 'alpha', 'histogram', 'compilations'):
      assert again[field] == row[field]

  # What is there is not compiled again where a run goes on.
  file = pathlib.Path(x.results) / 'rows.jsonl'
  lines = file.read_text().splitlines(keepends=True)
  file.write_text(''.join(lines[:-1]))
  Watched(plan(x)).run()
  assert parts == [['draft'], ['ngram'], ['ngram']]


def test_rows_of_other_prompts_are_refused(folder, tmp_path):
  """A file of prompts that changed may not continue the old rows."""
  x = tiny.experiment(folder, drafters=('ngram',), results=str(tmp_path / 'a'))
  there = results.Folder(x.results, results.settings_of(x))
  there.add({'domain': 'code', 'prompts_hash': 'other'})
  with pytest.raises(ValueError, match='rows of other prompts of code'):
    Runner(plan(x))


def test_a_log_has_one_line_a_phase(ran):
  _, log = ran
  lines = log.splitlines()
  ends = r': (\d+ of \d+, )?(\d+\.\d s|\d+:\d\d)$'
  assert all(re.search(ends, line) for line in lines)
  names = [line.partition(': ')[0] for line in lines]
  assert names[0] == 'loading'
  for name in ('code, temperature 0 (1 more)', 'code, temperature 1'):
    assert names.count(name) == names.count(f'{name}, alpha') == 1
  assert '\r' not in log


def test_rows_of_a_run(ran):
  rows, _ = ran
  both = {'whole'} | ({'native'} if native.available() else set())
  for row in rows:
    assert row['tokens'] == 2 * 12
    assert sum(row['histogram']) <= row['target_calls'] <= row['tokens']
    assert row['tau_ci'] is None  # Two prompts are too few.
    # The baseline is the fastest layout of those that there are.
    for choice in (row['baseline'], row['verification']):
      seconds = choice['seconds_per_step']
      assert seconds.keys() == both
      assert choice['layout'] == min(seconds, key=seconds.get)
    assert isinstance(row['impossible'], list)
  assert {r['compilations'] for r in rows} == {1}  # Whatever the temperature.
  assert len({json.dumps(row['baseline']) for row in rows}) == 1
  (greedy,) = (r for r in rows if r['temperature'] == 0)
  verdicts = [d['verdict'] for d in greedy['differences']]
  assert verdicts.count('bug') == 0
  assert greedy['identical_to_plain'] + len(verdicts) == greedy['prompts']


def test_the_last_batch_is_filled_up_with_nothing(folder, tmp_path):
  x = tiny.experiment(
    folder, prompts=THREE, batch=2, results=str(tmp_path / 'a')
  )
  runner = Runner(plan(x))
  first, last = runner.units('code', 1.0)
  texts = runner.prompts['code']
  assert first.prompts == texts[:2]
  assert (first.indices.tolist(), first.new_tokens) == ([0, 1], 12)
  # The row beyond the last is there, and ends before its first step.
  assert last.prompts == [texts[2]] * 2
  assert last.indices.tolist() == [2, 2]
  assert last.new_tokens.tolist() == [12, 0]
  assert (first.live, last.live) == (2, 1)


def test_bad_logits_name_the_cell_and_keep_the_rest(folder, tmp_path):
  x = tiny.experiment(folder, drafters=('ngram',), results=str(tmp_path / 'a'))
  x.temperatures = (0.0,)
  runner = Runner(plan(x))
  kept = dict.fromkeys(results.KEY) | {'kept': True}
  runner.folder.add(kept)
  for form in runner.built.forms.values():
    norm = form.params['norm']
    norm['scale'] = np.full_like(norm['scale'], np.nan)
  with pytest.raises(measure.NotFinite, match='code at temperature 0'):
    runner.run()
  again = results.Folder(tmp_path / 'a', results.settings_of(x))
  assert again.rows == [{'schema': SCHEMA} | kept]


def test_drafters_of_one_program_have_alphas_of_their_own():
  """Two checkpoints of the same sizes are one program, and two drafters."""

  def method(drafter):
    return types.SimpleNamespace(
      drafter=drafter, single='the same', chance=generate.PARTS
    )

  methods = [method('before'), method('after'), method('after')]
  found = singles(methods)
  assert list(found.values()) == methods[:2]


# Made-up methods, drafters and times.


@pytest.mark.parametrize(
  ('crowded', 'parts'),
  [(True, [('cdef', 6 / 5), ('g', 3 / 2)]), (False, [('cdefg', 8 / 6)])],
)
def test_methods_are_decoded_as_far_as_programs_fit(
  crowded, parts, monkeypatch
):
  """Four at a time are compiled, without the first two, which have rows."""
  made, one = types.SimpleNamespace, scripted_run.built().methods[0]
  methods = [dataclasses.replace(one, drafter=name) for name in 'abcdefg']
  seen, rows, runner = [], {'a', 'b'}, object.__new__(Runner)

  def warm_up():
    assert len(seen) < len(parts)
    timed = runner.compile('job')
    seen.append((''.join(m.drafter for m in timed), runner.compilations))

  vars(runner).update(
    plan=made(batch=2, batches=(2,), timed=True, temperatures=(0.0,)),
    prompts={'code': []}, turn=slice(None), before_races=None,
    built=made(methods=methods), warm_up=warm_up, whole=lambda *where: where,
    folder=made(has=lambda drafter, **_: drafter in rows),
    loops=lambda timed, *_: dict.fromkeys(['plain', *timed]),
    group=lambda *_: rows.update(m.drafter for m in runner.part),
  )  # fmt: skip
  monkeypatch.setattr(costs, 'replay', lambda way, job: (way, job))
  monkeypatch.setattr(measure, 'crowded', lambda: crowded)
  monkeypatch.setattr(measure, 'compile_all', lambda new: 1 + len(new))
  monkeypatch.setattr(measure, 'make_room', lambda: None)
  runner.run()
  assert seen == parts
  assert runner.complete()
  # Times are compared: where one method lacks a row, all are decoded.
  rows.remove('c')
  for runner.plan.timed, todo in ((True, 'abcdefg'), (False, 'c')):
    found = runner.todo('code', 0.0)
    assert ''.join(m.drafter for m in found) == todo
    assert {cell['batch'] for cell in found.values()} == {2}


@pytest.mark.parametrize(('quick', 'turns'), [(True, 3), (False, 7)])
def test_times_are_taken_turn_by_turn(quick, turns, monkeypatch):
  """Costs on every batch; layouts on one greedy batch of the first prompts."""
  made, taken = types.SimpleNamespace, []
  planned = made(quick=quick, batch=10)
  one = made(plan=planned, timer=made(turn=taken.append))
  Runner.measure_costs(one, [*'ab'])
  assert ''.join(taken) == 'abababa'[:turns]
  monkeypatch.setattr(Loaded, 'job', lambda _, *given: given)
  monkeypatch.setattr(Loaded, 'settle', lambda _, race: race)
  built = dataclasses.replace(scripted_run.built(), plan=planned, forms={0: 0})
  (texts, place, temperature), found = dataclasses.astuple(built.race())
  assert place.tolist() == [*range(8), 0, 1]
  assert texts == [scripted_run.prompts()[i] for i in place]
  assert (temperature, found) == (0.0, 3 if quick else layouts.TURNS)


def test_passes_race_in_the_middle_of_the_longest_text(monkeypatch):
  """The longest text gets 12 tokens; with an encoder it begins with one."""
  monkeypatch.setattr(layouts, 'race', lambda *given: given)
  new = np.array([12, 0])
  job = measure.Job([[1] * 5, [1] * 3], None, None, new, 0, 128, 256)
  for encode, used in ((None, 5 + 6), (len, 1 + 6)):
    forms = {'a': layouts.Arranged(types.SimpleNamespace(encode=encode), None)}
    assert Race(job, 4).passes(forms, 3) == (forms, (2, 128, used, 256), 3, 4)


def test_slots_serve_the_longest_prompt_and_the_deepest_draft():
  """Twelve new tokens, three that are drafted, and one more."""
  for longest, slots in ((112, 128), (113, 256)):
    one = dataclasses.replace(
      scripted_run.built(), plan=types.SimpleNamespace(max_new_tokens=12),
      prompts={i: Chosen([[1] * n], '') for i, n in enumerate((1, longest, 2))},
    )  # fmt: skip
    assert one.slots == (slots, None)
