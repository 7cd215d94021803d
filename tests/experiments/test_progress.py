"""Phases of a program: what a terminal and a log file show of them."""

import contextlib
import io
import re
import time

import pytest

from specjax.bench.plan import plan
from specjax.bench.runner import Runner
from specjax.cli import progress
from tests.support import tiny

COUNT = re.compile(r'^(.*): (\d+) of (\d+), ')


class Terminal(io.StringIO):
  def isatty(self):
    return True

  def fileno(self):
    raise OSError  # Its width is not known.

  def shown(self):
    """The lines that were drawn, of which each replaced the one before."""
    return [x for x in re.split(r'\r\x1b\[K|\r|\n', self.getvalue()) if x]


@pytest.fixture
def terminal(monkeypatch):
  monkeypatch.setattr(progress, '_FIRST', 0.0)
  monkeypatch.setattr(progress, '_EVERY', 0.002)
  monkeypatch.setattr(progress, '_BRIEF', 0.0)
  return Terminal()


def test_a_terminal_shows_a_phase_that_does_nothing_countable(terminal):
  with contextlib.redirect_stderr(terminal), progress.phase('loading'):
    time.sleep(0.05)
  shown = terminal.shown()
  assert len(shown) > 2
  assert all(re.fullmatch(r'loading: 0\.\d s', line) for line in shown)


def test_the_time_left_waits_for_items_that_say_it(monkeypatch):
  now = iter(range(100))
  monkeypatch.setattr(progress.time, 'monotonic', lambda: float(next(now)))
  one = progress.Phase('decoding', 5, done=2, alike=2)
  assert one.left() is None
  one.advance()
  assert one.left() is None
  one.advance()
  assert one.left() == 0  # One item is left; it took one second an item.
  assert progress.Phase('compiling', 5, done=0, alike=None).left() is None


def test_a_narrow_terminal_shows_the_counts():
  one = progress.Phase('a long name of a phase', 3, done=0, alike=None)
  one.note = 'and a note'
  line = one.line(width=30)
  assert len(line) < 30
  assert re.fullmatch('a long.*: 0 of 3, 0.0 s', line)
  assert [*map(progress.clock, (12.34, 125))] == ['12.3 s', '2:05']


def test_a_phase_that_fails_or_must_not_last_leaves_no_line(capsys):
  with pytest.raises(KeyError), progress.phase('loading'):
    raise KeyError
  with progress.phase('starting', lasting=False):
    pass
  assert not capsys.readouterr().err


def test_the_first_item_is_waited_for(capsys):
  items = progress.until_first('waiting', iter([1, 2]))
  assert capsys.readouterr().err.startswith('waiting: ')
  assert [*items] == [1, 2]
  assert [*progress.until_first('waiting', iter([]))] == []


@pytest.mark.slow
def test_totals_of_a_run_stay_and_shares_never_fall(folder, tmp_path, terminal):
  x = tiny.experiment(folder, drafters=('ngram',), results=str(tmp_path / 'a'))
  with contextlib.redirect_stderr(terminal):
    Runner(plan(x)).run()
  last: tuple = ('', 0, 0)
  names = []
  for line in terminal.shown():
    if not (found := COUNT.match(line)):
      continue
    name, done, total = found[1], int(found[2]), int(found[3])
    if name == last[0] and last[1] < last[2]:
      assert total == last[2]
      assert done >= last[1]
    else:
      assert last[1] == last[2]  # The phase before ended where it said.
    names.append(name)
    last = name, done, total
  assert len(names) > 10
  assert last[1] == last[2]
  assert 'compiling' in names
