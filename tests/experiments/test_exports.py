"""Rows in the formats of others: CSV, LaTeX and speculation profiles."""

import csv
import io
import json
import pathlib
import re

import numpy as np
import pytest

from experiments import exports, tables
from specjax.bench import results
from specjax.reports import latex, profiles, run
from specjax.stats import metrics
from tests.support import processes
from tests.support import rows as made

ROOT = pathlib.Path(__file__).parents[2]
SUMMARIES = sorted((ROOT / 'results').rglob('summary.md'))


def quickstart() -> list[dict]:
  return results.read_rows(ROOT / 'results/quickstart/rows.jsonl')[0]


def test_every_value_of_a_row_is_in_the_csv():
  rows = [
    made.row(drafter='a, "b"', unit_tokens=[1, 2]),
    made.row(alpha=0.25, alpha_ci=None, added={'c': {'d': 7}}, missing=None),
  ]
  text = exports.as_csv(rows)['rows.csv']
  first, second = csv.DictReader(io.StringIO(text))
  assert (first['drafter'], first['prompts']) == ('a, "b"', '8')
  assert (first['tau_ci_low'], first['tau_ci_high']) == ('1.9', '2.1')
  assert json.loads(first['unit_tokens']) == [1, 2]
  assert first['versions.jax'] == '0'
  assert (second['alpha'], second['alpha_ci_low']) == ('0.25', '')
  assert (first['added.c.d'], second['added.c.d']) == ('', '7')
  assert second['missing'] == ''


UNESCAPED = {
  **{escaped: c for c, escaped in latex._ESCAPES.items()},
  r'\textbf': '',
  r'\texttt': '',
}
TOKEN = re.compile(r'\\text[a-z]+(?:\{\})?|\\[&%$#_{}]|[^\\]')


def read_cell(text: str) -> str:
  """The characters that LaTeX prints for a cell; no command is unknown."""
  tokens = TOKEN.findall(text)
  assert ''.join(tokens) == text
  depth = 0
  printed = []
  for token in tokens:
    depth += (token == '{') - (token == '}')
    assert depth >= 0
    assert token not in '&%$#_~^'
    assert not token.startswith('\\') or token in UNESCAPED
    if token not in '{}':
      printed.append(UNESCAPED.get(token, token))
  assert depth == 0
  return ''.join(printed)


def read_latex(text: str) -> list[latex.Found]:
  """Tables of a LaTeX text, of which every line is understood."""
  lines = [line for line in text.splitlines() if line and line[0] != '%']
  read = []
  while lines:
    begin, centering, small, caption, tabular, top, *lines = lines
    assert begin == r'\begin{table}[htbp]'
    assert (centering, small, top) == (r'\centering', r'\small', r'\toprule')
    (title,) = re.fullmatch(r'\\caption\{(.*)\}', caption).groups()
    (places,) = re.fullmatch(r'\\begin\{tabular\}\{([lr]+)\}', tabular).groups()
    end = lines.index(r'\bottomrule')
    rows = []
    for line in lines[:end]:
      if line == r'\midrule':
        assert len(rows) == 1
        continue
      assert line.endswith(r' \\')
      assert line[0] not in '[*'
      cells = re.split(r'(?<!\\)&', line.removesuffix(r' \\'))
      assert len(cells) == len(places)
      rows.append([read_cell(cell.strip()) for cell in cells])
    read.append(latex.Found(read_cell(title), rows[0], rows[1:]))
    assert lines[end + 1 : end + 3] == [r'\end{tabular}', r'\end{table}']
    lines = lines[end + 3 :]
  return read


def unmarked(cell: str) -> str:
  return re.sub(r'\*\*|`', '', cell)


@pytest.mark.parametrize(
  'file', SUMMARIES, ids=[f.parent.name for f in SUMMARIES]
)
def test_latex_has_the_tables_of_the_summary(file):
  text = file.read_text()
  found = list(latex.find(text))
  assert len(found) == len(re.findall(r'^\| *-', text, re.MULTILINE)) > 0
  for wrote, read in zip(found, read_latex(latex.tables(text)), strict=True):
    assert read.title == unmarked(wrote.title)
    cells = [[unmarked(c) for c in line] for line in [wrote.head, *wrote.lines]]
    assert [read.head, *read.lines] == cells


def test_latex_prints_every_character():
  cells = [r'50% of a_b & {c} #1 $2 ~ ^ \x', '[1, 2]', '<d|e>', '*']
  text = latex.table(latex.Found('**bold** and `a_b`', cells, [cells[::-1]]))
  (read,) = read_latex(text)
  assert read == ('bold and a_b', cells, [cells[::-1]])
  assert r'\textbf{bold} and \texttt{a\_b}' in text


def test_columns_of_numbers_are_flush_right():
  lines = [['a', '1.2 [0.9, 1.3]', '-', '3%'], ['b', '0.5', '-1,000', 'x']]
  text = latex.table(latex.Found('t', list('wxyz'), lines))
  assert r'\begin{tabular}{lrrl}' in text


# Fields of version 1.0, and what they hold.
NUMBER = int | float
VERSION_1 = {
  'schema_version': str, 'measured': bool, 'method': str | None,
  'draft_checkpoint': dict | None, 'target_model': dict | None,
  'num_speculative_tokens': int, 'block_size': int | None,
  'max_supported_k': int, 'verification_method': str,
  'conditional_accept_rates': list | None,
  'marginal_accept_rates': list | None, 'mean_accept_length': NUMBER,
  'mean_accept_length_per_request': NUMBER, 'accept_length_model': str,
  'accept_length_by_k': dict, 'acceptance_length_histogram': dict,
  'per_category': dict | None, 'measurement_conditions': dict | None,
  'validation': dict | None,
}  # fmt: skip


def check_profile(profile: dict) -> None:
  """Whether a profile is one of version 1.0, and its numbers agree."""
  reason = {'vectors_unavailable_reason'} & profile.keys()
  assert profile.keys() - reason == VERSION_1.keys()
  for name, kind in VERSION_1.items():
    assert isinstance(profile[name], kind), name
  assert profile['schema_version'] == '1.0'
  assert profile['accept_length_model'] in ('chain_analytic', 'measured_per_k')
  depth, mean = profile['num_speculative_tokens'], profile['mean_accept_length']
  assert profile['accept_length_by_k'][str(depth)] == mean
  histogram = {
    int(k): n for k, n in profile['acceptance_length_histogram'].items()
  }
  assert {*histogram} <= {*range(1, depth + 2)}
  steps = sum(histogram.values())
  of_steps = sum(k * n for k, n in histogram.items()) / steps
  assert mean == pytest.approx(of_steps, abs=1e-6)
  for category in profile['per_category'].values():
    assert 1 <= category['mean_accept_length'] <= depth + 1
  if profile['verification_method'] == 'block':
    assert reason
    assert profile['conditional_accept_rates'] is None
    assert profile['marginal_accept_rates'] is None
    return
  assert profile['verification_method'] == 'longest_prefix'
  conditional = np.array(profile['conditional_accept_rates'])
  marginal = np.array(profile['marginal_accept_rates'])
  assert len(conditional) == len(marginal) == depth
  assert ((conditional >= 0) & (conditional <= 1)).all()
  assert (np.diff(marginal, prepend=1) <= 0).all()
  np.testing.assert_allclose(conditional.cumprod(), marginal, atol=1e-5)
  assert 1 + marginal.sum() == pytest.approx(mean, abs=1e-5)
  assert profile['validation']['mean_consistency']['passed']
  assert profile['validation']['marginal_monotonicity']['passed']


def counted(histogram, **changes) -> dict:
  """A row of a run with steps by accepted length."""
  return made.row(gamma=len(histogram) - 1, histogram=histogram, **changes)


def test_a_profile_of_known_steps():
  """100 steps: 40 accepted nothing, 30 one token, 30 two, none all three."""
  row = counted([40, 30, 30, 0], unit_tokens=[3, 9], unit_target_calls=[1, 9])
  (made_here,) = profiles.profiles([row]).values()
  check_profile(made_here)
  assert made_here['marginal_accept_rates'] == [0.6, 0.3, 0.0]
  assert made_here['conditional_accept_rates'] == [0.6, 0.5, 0.0]
  assert made_here['mean_accept_length'] == 1.9
  assert made_here['mean_accept_length_per_request'] == 2.0
  assert made_here['acceptance_length_histogram'] == {
    '1': 40, '2': 30, '3': 30, '4': 0
  }  # fmt: skip
  # A length that never occurred leaves the positions before it as they are.
  (gap,) = profiles.profiles([counted([50, 0, 50, 0])]).values()
  assert gap['marginal_accept_rates'] == [0.5, 0.5, 0.0]


def test_profiles_are_of_a_drafter_a_rule_and_a_temperature():
  lm = {'load': 'specjax.drafters.lm.load', 'draft': 'small', 'target': 'large'}
  lm |= {'dtype': 'bfloat16', 'draft_dtype': 'float16'}
  rows = [
    counted([1, 2, 3], **lm),
    counted([5, 1, 0], domain='math', prompts=4, **lm),
    counted([1, 1], target_revision='abc', **lm),
    counted([1, 2, 3], verifier='block', **lm),
    counted([1, 2, 3], temperature=1.0, options={'widths': [2]}, **lm),
    counted([0, 0, 0], drafter='silent'),
    made.row(drafter='old'),
  ]
  found = profiles.profiles(rows)
  assert {*found} == {'draft-token-0', 'draft-block-0', 'draft-token-1'}
  for profile in found.values():
    check_profile(profile)
  chain = found['draft-token-0']
  assert chain['method'] == 'draft_model'
  assert chain['accept_length_model'] == 'chain_analytic'
  assert chain['accept_length_by_k'] == {'1': 1.5, '2': 1.75}
  assert chain['acceptance_length_histogram'] == {'1': 6, '2': 3, '3': 3}
  assert chain['per_category']['math']['mean_accept_length'] == 1.166667
  assert chain['draft_checkpoint'] == {'id': 'small', 'revision': None}
  conditions = chain['measurement_conditions']
  assert conditions['num_samples'] == 12
  assert (conditions['dtype'], conditions['draft_dtype']) == (
    'bfloat16',
    'float16',
  )
  assert found['draft-token-1']['accept_length_model'] == 'measured_per_k'
  assert found['draft-block-0']['accept_length_model'] == 'measured_per_k'


def test_committed_rows_make_profiles_that_agree_with_them():
  rows = quickstart()
  found = profiles.profiles(rows)
  assert len(found) == 5 * 2
  for profile in found.values():
    check_profile(profile)
  profile = found['draft-128-token-0']
  for row in rows:
    if (row['drafter'], row['temperature']) == ('draft-128', 0):
      category = profile['per_category'][row['domain']]
      assert category['mean_accept_length'] == pytest.approx(
        1 + row['tau_without_bonus'], abs=1e-6
      )
      units = row['unit_tokens'], row['unit_target_calls']
      assert category['mean_accept_length_per_request'] == pytest.approx(
        metrics.tau_per_request(*units).value, abs=1e-6
      )


def test_files_are_written_beside_the_rows(tmp_path, capsys):
  for name, row in (('one', counted([1, 2, 3])), ('two', made.row())):
    (tmp_path / name).mkdir()
    (tmp_path / name / 'rows.jsonl').write_text(json.dumps(row) + '\n')
  for form, files in (
    ('csv', {'one/rows.csv', 'two/rows.csv'}),
    ('latex', {'one/tables.tex', 'two/tables.tex'}),
    ('profile', {'one/profiles/draft-token-0/speculation_profile.json'}),
  ):
    tables.regenerate([str(tmp_path)], format=form)
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last['folders'], last['rows'], last['left_out']) == (2, 2, 0)
    assert {*last['files']} == {str(tmp_path / file) for file in files}
    assert all(pathlib.Path(file).stat().st_size for file in last['files'])
  assert not list(tmp_path.rglob('summary.md'))
  text = (tmp_path / 'one/tables.tex').read_text()
  assert len(read_latex(text)) == len(list(latex.find(run.summary([row]))))


def test_help_shows_the_folder_and_its_formats():
  done = processes.run('experiments.tables', '--help')
  usage = done.stdout.partition('usage: ')[2]
  forms = 'csv|latex|markdown|profile'
  assert f'python -m experiments.tables [FOLDER] [--format={forms}]\n' in usage
  assert {*forms.split('|')} == {*exports.FORMATS, tables.MARKDOWN}
