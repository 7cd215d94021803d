"""Plants small bugs in the library, and counts those that the tests catch.

  python -m tests.mutants --sample 20 stats verify
  python -m tests.mutants --since main --minutes 5

A mutant is one small change of a module, made in a copy of the checkout. The
test files that are nearest by imports run until one test fails, those first
that name what the mutant changes; with `--contexts` before them up to 40 tests
that ran the changed statement, or with `--times` all that take a quarter of
`--limit` together. A mutant that cannot be imported does not count.
One in which a test hangs is caught, since a test has a time limit
(`setup.cfg`), here a third of `--limit`; one whose tests take longer than that
together is not. Mutants that change nothing are in `equivalent_mutants.txt`,
each with its reason. Results are appended to a file, and the same command goes
on where it was stopped.
"""

import argparse
import ast
import collections
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

from scipy import stats

from tests.support import mutations

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = (
  *('loop', 'sampling', 'verify', 'drafters', 'constraints'),
  *('requests', 'stats', 'bench', 'checkpoints', 'serving'),
)
UNCAUGHT = 'survived', 'hung', 'untested'
PYTEST = '-m', 'pytest', '-q', '-n0', '-p', 'no:cacheprovider', '-rfE'


def module_of(path):
  return path.removesuffix('.py').replace('/', '.').removesuffix('.__init__')


def users_of_modules():
  """The modules that import each module of the checkout."""
  paths = [p.relative_to(ROOT) for p in ROOT.glob('*/**/*.py')]
  names, users = {module_of(str(p)): p for p in paths}, {}
  for user, path in names.items():
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
      found = []
      if isinstance(node, ast.Import):
        found = [x.name for x in node.names]
      elif isinstance(node, ast.ImportFrom):
        found = [f'{node.module}.{x.name}' for x in node.names]
      for name in found:
        name = name if name in names else name.rpartition('.')[0]
        users.setdefault(name, set()).add(user)
  return users


def nearest(users, module, count):
  """The test files that import a module directly or through few others."""
  away, queue = {module: 0}, [module]
  for one in queue:
    new = sorted(users.get(one, set()) - away.keys())
    away |= dict.fromkeys(new, away[one] + 1)
    queue += new
  uses = collections.Counter(user for found in users.values() for user in found)
  own = {*re.split('[._]', module)}
  tests = [x for x in away if '.test_' in x and away[x] <= 3]
  # Of those equally near, the ones about this module and little else.
  tests.sort(
    key=lambda x: (-len(own & {*re.split('[._]', x)}), away[x], uses[x], x)
  )
  return [x.replace('.', '/') + '.py' for x in tests[:count]]


def naming(old, new, files):
  """Sorts test files: those that name what a mutant changes come first.

  A word counts the more, the fewer files have it. Where a mutant changes no
  word, those of its statement count.
  """
  one, other = ({*re.findall(r'\b[A-Za-z_]\w{3,}', x)} for x in (old, new))
  words = ((one ^ other) - {'True', 'False', 'None', 'pass'}) or one
  texts = [(ROOT / x).read_text() for x in files]
  found = [{w for w in words if re.search(rf'\b{w}\b', x)} for x in texts]
  weight = collections.Counter(w for some in found for w in some)
  worth = {
    x: sum(1 / weight[w] for w in s) for x, s in zip(files, found, strict=True)
  }
  first = sorted(files, key=worth.get, reverse=True)[:3]
  first = [x for x in first if worth[x]]
  return first + [x for x in files if x not in first]


def times_of(report):
  """The seconds of each test that passed, of a report of `--junitxml`.

  One that failed has no use: it takes for ever.
  """
  times = {}
  for case in xml.etree.ElementTree.parse(report).iter('testcase'):
    name = case.get('classname').replace('.', '/') + '.py::' + case.get('name')
    times[name] = math.inf if len(case) else float(case.get('time'))
  return times


def within(tests, times, seconds):
  """The tests that fit, one after the other, into so many seconds."""
  kept = []
  for test in tests:
    if times.get(test, 0) <= seconds:
      seconds -= times.get(test, 0)
      kept.append(test)
  return kept


def covering(contexts, path, line, files):
  """The tests that ran a statement, eight of each file in turn, by nearness.

  Of a file those come first that ran what few tests run of the same function:
  an error, or another special case.
  """
  tree = ast.parse((ROOT / path).read_bytes())
  found = [x for x in ast.walk(tree) if isinstance(x, ast.stmt)]
  found = [x for x in found if x.lineno <= line <= x.end_lineno]
  one = max(found, key=lambda x: x.lineno)
  body = getattr(one, 'body', None) or [None]
  last = getattr(body[0], 'lineno', one.end_lineno + 1)
  lines = contexts.contexts_by_lineno(path)  # As coverage was told to name it.
  lines = lines or contexts.contexts_by_lineno(str(ROOT / path))
  lines = {i: {x.split('|')[0] for x in ran if x} for i, ran in lines.items()}
  within = [x for x in found if isinstance(x, ast.FunctionDef)] or [one]
  home, rare = max(within, key=lambda x: x.lineno), collections.Counter()
  for i in range(home.lineno, home.end_lineno + 1):
    for test in lines.get(i, ()):
      rare[test] += 1 / len(lines[i])
  ran = {t for i in range(one.lineno, last) for t in lines.get(i, ())}
  tests, turns = {}, {}
  for test in sorted(ran, key=lambda x: (-rare[x], x)):
    file = test.split('::')[0]
    place = files.index(file) if file in files else len(files)
    tests[test] = turns.get(file, 0) // 8, place, len(tests)
    turns[file] = turns.get(file, 0) + 1
  return sorted(tests, key=tests.get)


def python(place, limit, *words):
  """Runs Python in a copy: its exit status, None where it hung, and output."""
  more = {'PYTHONPATH': place, 'JAX_COMPILATION_CACHE_DIR': f'{place}/programs'}
  more['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.05'
  with tempfile.TemporaryFile('w+') as out:
    process = subprocess.Popen(
      [sys.executable, *words], cwd=place, env=os.environ | more,
      stdout=out, stderr=out, start_new_session=True,
    )  # fmt: skip
    try:
      status = process.wait(limit)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)
      status = None
    out.seek(0)
    return status, out.read()


def hang(x):
  """The time limit of a test."""
  return '-o', f'faulthandler_timeout={x.limit / 3}'


def outcome(place, path, tests, x):
  """Returns the fate of a mutant in a copy, and the test that failed."""
  words = *PYTEST, *hang(x), '-x', *x.slow, *tests
  status, out = python(place, x.limit, *words)
  if status is None:
    return 'hung', ''
  if status in (0, 5):
    return ('survived' if ' passed' in out else 'untested'), ''
  failed = re.search(r'^(?:FAILED|ERROR) (.+?)(?: - |$)', out, re.MULTILINE)
  if failed is None and 'Timeout (' in out:
    ran = re.findall(r'"[^"\n]*(tests/[^"\n]+)", line \d+ in (test_\w+)', out)
    return ('caught', '::'.join(ran[-1])) if ran else ('hung', '')
  if status != 1:  # No test ran: perhaps nothing can be imported.
    test = f'import specjax, {module_of(path)}'
    if failed is None or python(place, x.limit, '-c', test)[0]:
      return 'not imported', ''
  return 'caught', failed[1]


def sample(x):
  """Yields so many mutants of each package or module, drawn at random."""
  lines = collections.defaultdict(set)
  words = 'git', 'diff', '-U0', x.since or 'HEAD', '--', 'specjax'
  diff = subprocess.check_output(words, cwd=ROOT, text=True)
  for part in re.split(r'^\+\+\+ b/', diff, flags=re.MULTILINE)[1:]:
    for begin, n in re.findall(r'^@@ .* \+(\d+),?(\d*) @@', part, re.MULTILINE):
      lines[part.split('\n')[0]] |= {int(begin) + i for i in range(int(n or 1))}
  for name in x.packages or PACKAGES:
    place = ROOT / 'specjax' / name
    files = sorted(place.rglob('*.py')) or [place.with_suffix('.py')]
    pool = [
      (str(file.relative_to(ROOT)), *mutant)
      for file in files
      for mutant in mutations.of_file(file)
    ]
    pool = [m for m in pool if not x.since or m[1] in lines[m[0]]]
    random.Random(f'{x.seed} {name}').shuffle(pool)
    yield from pool[: x.sample]


def report(found):
  """Prints the uncaught mutants, and the share of those caught by package."""
  if not found:
    print('No mutant: name other packages, or an earlier commit with --since.')
  count = collections.defaultdict(collections.Counter)
  for (path, old, new), made in found.items():
    for name in (path.split('/')[1], 'all'):
      count[name][made['outcome']] += 1
    if made['outcome'] in UNCAUGHT:
      print(
        f'\n{path}\n- {old}\n+ {new}\nline {made["line"]}, {made["outcome"]}'
      )
  for name, c in count.items():
    total = c['caught'] + sum(c[x] for x in UNCAUGHT)
    ci = stats.binomtest(c['caught'], max(total, 1)).proportion_ci(
      method='wilson'
    )
    print(
      f'\n{name}: {c["caught"]} of {total} caught, Wilson 95% '
      f'[{ci.low:.2f}, {ci.high:.2f}]; {dict(c)}'
    )


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('packages', nargs='*', help='of specjax, or modules')
  parser.add_argument('--sample', type=int, default=10, help='of each package')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--since', help='only lines changed since this commit')
  parser.add_argument('--files', type=int, default=8, help='test files to run')
  parser.add_argument('--limit', type=float, default=300, help='seconds of one')
  parser.add_argument('--minutes', type=float, default=1e9, help='of all')
  parser.add_argument(
    '--slow', action='append_const', const='--slow', default=[]
  )
  parser.add_argument('--contexts', help='coverage: its tests go first')
  parser.add_argument('--times', help='of tests: a file of --junitxml')
  parser.add_argument('--again', action='store_true', help='run uncaught again')
  parser.add_argument('--results', default=f'{ROOT}/runs/mutants.jsonl')
  x = parser.parse_args()
  contexts = None
  if x.contexts:
    import coverage

    contexts = coverage.CoverageData(x.contexts)
    contexts.read()
    if not {*contexts.measured_contexts()} - {''}:
      sys.exit(f'--contexts: {x.contexts} names no test: see contributing.md')
  times = times_of(x.times) if x.times else {}
  end, users, file = time.time() + 60 * x.minutes, users_of_modules(), x.results
  pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
  pathlib.Path(file).touch()
  rows = map(json.loads, pathlib.Path(file).read_text().splitlines())
  known = {(r['path'], r['old'], r['new']): r for r in rows}
  same = (ROOT / 'tests/equivalent_mutants.txt').read_text()
  found, failed = {}, set()
  with tempfile.TemporaryDirectory() as place:
    words = 'git', 'ls-files', '-co', '--exclude-standard'
    for name in subprocess.check_output(
      words, cwd=ROOT, text=True
    ).splitlines():
      if (ROOT / name).is_file():
        os.makedirs(os.path.dirname(f'{place}/{name}'), exist_ok=True)
        shutil.copy(ROOT / name, f'{place}/{name}')
    for path, line, old, new, text in sample(x):
      made = known.get((path, old, new))
      if f'{path}\n- {old}\n+ {new}\n' in same:
        made = {'outcome': 'equivalent'}
      elif made is None or (x.again and made['outcome'] in UNCAUGHT):
        if time.time() > end:
          break
        tests, begin = nearest(users, module_of(path), None), time.time()
        tests = naming(old, new, tests)
        some = covering(contexts, path, line, tests) if contexts else []
        some = within(some, times, x.limit / 4) if times else some[:40]
        tests = some + tests[: x.files]
        pathlib.Path(place, path).write_bytes(text)
        what = outcome(place, path, tests, x) if tests else ('untested', '')
        shutil.copy(ROOT / path, f'{place}/{path}')
        names = 'path', 'line', 'old', 'new', 'outcome', 'test', 'seconds'
        cost = round(time.time() - begin, 1)
        made = dict(
          zip(names, (path, line, old, new, *what, cost), strict=True)
        )
        failed |= {what[1]} - {''}
        with open(file, 'a') as out:
          print(json.dumps(made), file=out)
        print(f'{what[0]}, {cost} s: {path}:{line} {what[1]}', flush=True)
      found[path, old, new] = made
    # Tests that fail because of a mutant pass without one.
    if failed and python(place, 900, *PYTEST, *hang(x), *x.slow, *failed)[0]:
      sys.exit(f'some of these tests fail without a mutant: {sorted(failed)}')
  report(found)


if __name__ == '__main__':
  main()
