"""Runs that are killed and go on: they leave what a whole run leaves."""

import contextlib
import json
from unittest import mock

import numpy as np
import pytest
import safetensors.numpy


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


def assert_equal_weights(*folders):
  one, other = (
    safetensors.numpy.load_file(folder / 'weights/model.safetensors')
    for folder in folders
  )
  assert one.keys() == other.keys()
  for name, x in one.items():
    np.testing.assert_array_equal(x, other[name])
