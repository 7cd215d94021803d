"""Weights split over the cores, in the programs: run by `test_over_cores`.

  python -m tests.support.over_cores FOLDER PROGRAM...

The last line is one JSON object: the rows of each program, or texts where none
is named.
"""

import json
import pathlib
import sys

import jax

import specjax
from specjax.bench.config import Candidate
from specjax.bench.loading import meshes, methods
from specjax.models.layouts import BLOCKED, CORES, WHOLE, LayoutChoice
from specjax.programs import explain, predict, run
from tests.support import tiny

PROGRAMS = {'run': run, 'explain': explain, 'predict': predict}


class Cores:
  """A race that the cores win, but for a draft."""

  def __init__(self, *_):
    pass

  def plain(self, ways):
    assert [*ways] == [WHOLE, BLOCKED, CORES]
    return LayoutChoice(CORES)  # Not decoded with yet.

  def tokens(self, names, make, count):
    assert [*names] == [WHOLE, BLOCKED, CORES]
    placed = [make(name).model.placement is not None for name in names]
    assert placed == [False, False, True]
    if make(WHOLE).model.config.num_layers == 1:
      return LayoutChoice(WHOLE, {WHOLE: 0.1, BLOCKED: 0.2, CORES: 0.3})
    return LayoutChoice(CORES, {WHOLE: 5.0, BLOCKED: 4.0, CORES: 2.0})


def rows(folder: pathlib.Path) -> list[dict]:
  lines = (folder / 'rows.jsonl').read_text().splitlines()
  return [json.loads(line) for line in lines]


def main(folder: pathlib.Path, programs: list[str]) -> None:
  methods.Race = Cores
  x = tiny.experiment(folder, temperatures=(0.0, 1.0), timed=True)
  x.candidates['exit'] = Candidate('early_exit', 2, options={'layers': 1})
  x.drafters = ('draft', 'ngram', 'exit')
  meshes.use_cores(x)
  tiny.write_pair(folder, num_kv_heads=2)
  found: dict = {'devices': jax.device_count()}
  for name in programs:
    x.results = str(folder / name)
    PROGRAMS[name].main(x)
    found[name] = rows(folder / name)
  found['texts'] = texts = []
  for layout in () if programs else (WHOLE, CORES):
    target = specjax.load(folder / 'target', layout=layout)
    draft = specjax.drafters.lm.load(target, str(folder / 'draft'))
    for drafter in (None, draft):
      out = specjax.decode(
        target, drafter, ['def f():', 'x'], new_tokens=12, temperature=[0, 1]
      )
      texts.append(out.tokens)
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), sys.argv[2:])
