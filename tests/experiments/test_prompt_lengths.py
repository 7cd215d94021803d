"""A study of one file: the same texts behind prompts of several lengths."""

from experiments import prompt_lengths as study
from specjax import reports
from tests.support import tiny
from tests.support.resumed import run_twice


def test_each_length_continues_the_ends_of_the_same_texts(
  folder, tmp_path, capsys
):
  x = tiny.experiment(
    folder, timed=False, quick=False, drafters=('ngram',), temperatures=(0.0,),
    max_new_tokens=6, results=str(tmp_path / 'rows'),
  )  # fmt: skip
  x = study.PromptLengths(**vars(x), lengths=(4, 16))
  rows = run_twice(study, x, capsys)
  assert [(r['of'], r['length']) for r in rows] == [('code', 4), ('code', 16)]
  assert [r['prompts_from']['longest'] for r in rows] == [4, 16]
  text = reports.summary(rows).splitlines()
  lines = [line for line in text if line.startswith('| code')]
  assert len(lines) == 2
  assert f'{rows[0]["tau"]:.2f}' in lines[0]
  assert len(reports.summary(rows[:1])) > 40
