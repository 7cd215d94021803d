"""Rows in the formats of others: CSV and LaTeX."""

import csv
import io
import json
import pathlib
import re

from experiments import tables
from specjax.reports import latex, run
from specjax.reports.markdown import Table
from tests.support import rows as made
from tests.support.processes import ROOT

SUMMARIES = sorted((ROOT / 'results').rglob('summary.md'))


def test_every_value_of_a_row_is_in_the_csv():
  rows = [
    made.row(drafter='a, "b"', unit_tokens=[1, 2]),
    made.row(alpha=0.25, alpha_ci=None, added={'c': {'d': 7}}, missing=None),
    {'tau_ci': [[1.0, 1.1], [1.2, 1.3]]},  # Of each draft length.
    {'tau_ci': [None, None, None]},
  ]
  text = tables.as_csv(rows)
  first, second, *others = csv.DictReader(io.StringIO(text))
  assert (first['drafter'], first['prompts']) == ('a, "b"', '8')
  assert (first['tau_ci_low'], first['tau_ci_high']) == ('1.9', '2.1')
  assert json.loads(first['unit_tokens']) == [1, 2]
  assert first['versions.jax'] == '0'
  assert (second['alpha'], second['alpha_ci_low']) == ('0.25', '')
  assert (first['added.c.d'], second['added.c.d']) == ('', '7')
  assert second['missing'] == ''
  pairs, nothing = (json.loads(one['tau_ci']) for one in others)
  assert (pairs, nothing) == ([[1.0, 1.1], [1.2, 1.3]], [None] * 3)


def test_latex_prints_every_character():
  cells = [r'50% of a_b & {c} #1 $2 ~ ^ \x', '[1, 2]', '<d|e>', '*']
  text = latex.table(Table('**bold** and `a_b`', '', cells, [cells[::-1]]))
  assert r'\caption{\textbf{bold} and \texttt{a\_b}}' in text
  escaped = (
    r'50\% of a\_b \& \{c\} \#1 \$2 \textasciitilde{} '
    r'\textasciicircum{} \textbackslash{}x'
  )
  last = r'\textless{}d\textbar{}e\textgreater{}'
  assert f'{escaped} & [1, 2] & {last} & * \\\\\n' in text
  # A star behind the end of a row would be an argument of it.
  assert f'\n{{}}* & {last} & [1, 2] & {escaped} \\\\\n' in text


def test_columns_of_numbers_are_flush_right():
  lines = [['a', '1.2 [0.9, 1.3]', '-', '3%'], ['b', '0.5', '-1,000', 'x']]
  text = latex.table(Table('t', '', list('wxyz'), lines))
  assert r'\begin{tabular}{lrrl}' in text


def test_latex_has_the_tables_of_every_summary():
  for file in SUMMARIES:
    text = file.read_text()
    found = list(latex.find(text))
    assert len(found) == len(re.findall(r'^\| *-', text, re.MULTILINE)) > 0
    made = latex.tables(text)
    for name in ('caption{', 'begin{tabular}', 'end{table}', 'bottomrule'):
      assert made.count(f'\\{name}') == len(found)
    rows = sum(1 + len(one.lines) for one in found)
    assert made.count(' \\\\\n') == rows


def test_files_are_written_beside_the_rows(tmp_path, capsys):
  for name, row in (('one', made.row()), ('two', made.row())):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'rows.jsonl').write_text(json.dumps(row) + '\n')
  for form, files in (
    ('csv', {'one/rows.csv', 'two/rows.csv'}),
    ('latex', {'one/tables.tex', 'two/tables.tex'}),
  ):
    tables.regenerate(str(tmp_path), form)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last['folders'], last['rows'], last['left_out']) == (2, 2, 0)
    assert {*last['files']} == {str(tmp_path / file) for file in files}
    assert all(pathlib.Path(file).stat().st_size for file in last['files'])
  assert not list(tmp_path.rglob('summary.md'))
  text = (tmp_path / 'one/tables.tex').read_text()
  assert text.count('end{table}') == len(list(latex.find(run.summary([row]))))


def test_a_part_that_cannot_be_made_is_kept_and_named():
  text = (
    'a\n<!-- table: nowhere / x -->\nold\n<!-- end -->\n'
    '<!-- section: made / nothing -->\nold\n<!-- end -->\n'
    '<!-- poem: made -->\nold\n<!-- end -->\n'
    '<!-- table: made / empty -->\nold\n<!-- end -->\n'
    '<!-- section: made / code -->\nold\n<!-- end -->\n'
    '<!-- table: made / code -->\nold\n<!-- end -->\n'
    '<!-- headline: made -->\nold\n<!-- end -->\n'
  )
  table = '| a |\n| - |\n| 1 |'
  summary = (
    'Good: [all](results/made).\n\nOn an abacus.\n\n## empty\n\nnote\n\n'
    f'### code, temperature 0\n\nnote\n\n{table}\n\nmore\n'
  )
  made, warnings = tables.fill(text, {'made': summary}, '../')
  assert 'no rows in results/nowhere' in warnings[0]
  assert "no heading begins with 'nothing'" in warnings[1]
  assert '<!-- poem: made -->' in warnings[2]
  assert 'no table below' in warnings[3]
  open_ended = '<!-- headline: made -->\nold\n' + text
  assert 'has no end' in tables.fill(open_ended, {})[1][0]
  assert made.count('\nold\n') == 4
  *_, section, only_table, headline = re.findall(
    r'-->\n\n(.*?)\n\n<!-- end', made, re.DOTALL
  )
  assert section == (f'#### code, temperature 0\n\nnote\n\n{table}\n\nmore')
  assert only_table == table
  assert headline == 'Good: [all](../results/made).\n\nOn an abacus.'
