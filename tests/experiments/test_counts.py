"""Counting the tokens of texts, and drafting some of them alone."""

import dataclasses
import json

import numpy as np
import pytest

from specjax import pair
from specjax.drafters.heads import frequencies
from specjax.errors import UserError
from specjax.programs import train
from specjax.training import count_tokens
from specjax.training.recipes import Counts


def test_every_text_of_a_record_is_counted(tokenizer, tmp_path, capsys):
  file = tmp_path / 'answers.jsonl'
  records = [
    {'question': 'import os', 'turns': [{'answer': 'import sys'}], 'id': 3},
    {'question': '', 'turns': []},
    'import re',
  ]
  file.write_text('\n'.join(json.dumps(record) for record in records))
  folder = tmp_path / 'counts'
  x = Counts(str(folder), pair.path('target'), str(file), successors=2)
  train.main(x)
  made = frequencies.read(folder)
  texts = [
    tokenizer.encode(text)
    for text in ('import os', 'import sys', '', 'import re')
  ]
  expected = np.ones(2048)
  for ids in texts:
    np.add.at(expected, ids, 1)
  np.testing.assert_allclose(made.unigram, expected / expected.sum(), rtol=1e-6)
  assert made.successor.shape == (2048, 2)
  total = sum(len(ids) for ids in texts)
  said = capsys.readouterr().out
  assert f'{total} tokens of 2048 kinds' in said
  *_, step, last = said.splitlines()
  assert step.endswith(f'--target.path={x.target} --drafters=counts:{folder}')
  last = json.loads(last)
  assert last == {'folder': str(folder), 'tokens': total, 'kinds': 2048}
  with pytest.raises(UserError, match=r'folder: .* exists'):
    count_tokens.main(x)
  file.write_text('{"a": 1}\n{"b": [2, 3]}\n')
  other = dataclasses.replace(x, folder=str(tmp_path / 'other'))
  with pytest.raises(UserError, match='texts: no record of'):
    count_tokens.main(other)


def test_pairs_are_the_most_frequent_first():
  text = [1, 2, 1, 2, 1, 3, 0, 1, 0]
  made = frequencies.count([text, [3, 3]], 5, 2)
  assert made.successor[1].tolist() == [2, 0]
  np.testing.assert_allclose(made.share[1], [0.5, 0.25])
  assert made.successor[2].tolist() == [1, 0]
  np.testing.assert_allclose(made.share[2], [1, 0])
  np.testing.assert_allclose(made.share[3], [0.5, 0.5])  # Not across texts.
  assert made.share[4].tolist() == [0, 0]
  single = np.array([3, 5, 3, 4, 1]) / 16
  np.testing.assert_allclose(made.unigram, single, rtol=1e-6)
