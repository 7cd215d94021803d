"""Decides what is kept for evaluation.

A split by document would leak: the docstring of a module is in its source, in
its documentation and, shortened, in its table of functions. So the split is by
name, and one name is held out of training in every domain at once. The names
are written down rather than drawn, because every version of Python ships
another set of modules and a drawn split would move with it.
"""

DOMAINS = ('code', 'documentation', 'structured')

# Pure Python in every version from 3.11 to 3.14, of varied size and subject,
# and without a sibling that repeats them (as `asyncio.queues` repeats `queue`).
HELD_OUT_MODULES = frozenset(
  {
    'argparse', 'bisect', 'cmd', 'colorsys', 'configparser', 'csv',
    'dataclasses', 'difflib', 'filecmp', 'fileinput', 'fractions', 'gettext',
    'graphlib', 'heapq', 'imaplib', 'ipaddress', 'json', 'mailbox', 'netrc',
    'plistlib', 'pprint', 'reprlib', 'sched', 'selectors', 'shelve', 'shlex',
    'smtplib', 'statistics', 'textwrap', 'timeit', 'tomllib', 'trace', 'zipapp',
  }
)  # fmt: skip

# Topics nest: "compound" holds all of "for". Those below lie in no topic that
# stays in training, so where one contains another both are listed.
HELD_OUT_TOPICS = frozenset(
  {
    'assert', 'assignment', 'augassign', 'binary', 'bitwise', 'booleans',
    'calls', 'comparisons', 'conversions', 'del', 'dict', 'exprlists',
    'formatstrings', 'global', 'id-classes', 'identifiers', 'import', 'in',
    'integers', 'lambda', 'nonlocal', 'operator-summary', 'raise', 'shifting',
    'slicings', 'strings', 'subscriptions', 'typesmapping', 'unary',
  }
)  # fmt: skip

# Whole generated documents of the structured domain, by group.
_HELD_OUT_TABLES = {
  'entities': frozenset('dr'),
  'imports': frozenset({'held_out'}),
  'locales': frozenset('es'),
  'mime': frozenset({'audio', 'image'}),
}

_TEST_FOLDERS = frozenset({'test', 'tests', 'idle_test'})


def is_test(module: str) -> bool:
  """Tells whether a module, by dotted name, lies in a package of tests."""
  return not _TEST_FOLDERS.isdisjoint(module.split('.'))


def is_held_out_module(module: str) -> bool:
  """Tells whether a module, by dotted name, is held out, or in or tests one."""
  parts = module.split('.')
  if parts[0] in HELD_OUT_MODULES:
    return True
  if not is_test(module):
    return False
  # Tests of `csv` are called test_csv, test_csv_dialects or csv_tests, and
  # may be a package of their own.
  return any(_is_test_of_held_out(part) for part in parts)


def _is_test_of_held_out(part: str) -> bool:
  words = part.removeprefix('test_').split('_')
  return any(
    '_'.join(words[:end]) in HELD_OUT_MODULES
    for end in range(1, len(words) + 1)
  )


def is_held_out_table(name: str) -> bool:
  """Tells whether a generated document, as "calendar/1999", is held out."""
  group, key = name.split('/', 1)
  if group == 'inventory':
    return is_held_out_module(key)
  # Taken at regular steps, so that every script and every decade has some.
  if group == 'unicode':
    return int(key, 16) // 128 % 11 == 5
  if group == 'calendar':
    return int(key) % 9 == 4
  return key in _HELD_OUT_TABLES.get(group, ())
