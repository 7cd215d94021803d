"""Runs that are killed and go on: they leave what a whole run leaves."""

import contextlib
import copy
import json
import pathlib
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy

from specjax import reports


class Killed(Exception):
  pass


@contextlib.contextmanager
def killed(where, name, at, place=-1):
  """Kills what runs inside where a function has this argument at a place."""
  right = getattr(where, name)

  def cut(*args):
    if args[place] == at:
      raise Killed
    return right(*args)

  with mock.patch.object(where, name, cut), pytest.raises(Killed):
    yield


def lines(file):
  return [json.loads(line) for line in file.read_text().splitlines()]


def run_twice(study, x, capsys) -> list[dict]:
  """The rows of a study, which prints them and makes none of them again."""
  file = pathlib.Path(x.results, 'rows.jsonl')
  study.run(copy.deepcopy(x))
  before, printed = file.read_text(), capsys.readouterr().out
  study.run(copy.deepcopy(x))
  assert file.read_text() == before
  rows = lines(file)
  assert {*map(reports.fault, rows)} == {''}
  assert reports.summary(rows) in printed
  assert json.loads(printed.splitlines()[-1])['rows'] == len(rows)
  return rows


def assert_equal_weights(*folders):
  one, other = (
    safetensors.numpy.load_file(folder / 'weights/model.safetensors')
    for folder in folders
  )
  assert one.keys() == other.keys()
  for name, x in one.items():
    np.testing.assert_array_equal(x, other[name])
