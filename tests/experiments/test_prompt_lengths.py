"""A study of one file: the same texts behind prompts of several lengths."""

import dataclasses
import json

import pytest

from experiments import prompt_lengths as study
from specjax import reports
from specjax.errors import UserError
from tests.support import tiny


def settings(folder, tmp_path, **changes):
  x = tiny.experiment(folder, timed=False, quick=False, drafters=('ngram',))
  x = dataclasses.replace(x, temperatures=(0.0,), max_new_tokens=6)
  more = {'results': str(tmp_path / 'rows'), 'lengths': (4, 16)}
  return study.PromptLengths(**vars(x) | more | changes)


def test_each_length_continues_the_ends_of_the_same_texts(
  folder, tmp_path, capsys
):
  study.run(settings(folder, tmp_path))
  text = capsys.readouterr().out
  rows = [json.loads(s) for s in (tmp_path / 'rows/rows.jsonl').open()]
  assert [(r['of'], r['length']) for r in rows] == [('code', 4), ('code', 16)]
  assert {*map(reports.fault, rows)} == {''}
  assert [r['prompts_from']['longest'] for r in rows] == [4, 16]
  lines = [line for line in text.splitlines() if line.startswith('| code')]
  assert len(lines) == 2
  assert f'{rows[0]["tau"]:.2f}' in lines[0]
  assert len(reports.summary(rows[:1])) > 40


@pytest.mark.parametrize('lengths', [(), (4, 17)])
def test_bad_lengths_are_named(folder, tmp_path, lengths):
  with pytest.raises(UserError, match='lengths'):
    study.run(settings(folder, tmp_path, lengths=lengths))
