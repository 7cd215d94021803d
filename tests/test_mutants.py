"""The small bugs that are planted, of a file that has most of them."""

from tests.support import mutations

SOURCE = """def f(a: int = 2, *, key=None):
  '''Says 3.'''
  while a < 1 and not key:
    a += 1
  if a:
    raise ValueError(f'{a} is {1}')
  return min(a[:4], é=True) + 0.5
"""
WANTED = [
  (1, 'def f(a: int = 3, *, key=None):'),
  (3, 'while not (a < 1 and (not key)):'),
  (3, 'while (a < 1 or not key):'),
  (3, 'while (a < 1):'),
  (3, 'while (a <= 1) and not key:'),
  (3, 'while a < 2 and not key:'),
  (3, 'while a < 1 and (key):'),
  (4, 'pass'),
  (4, 'a += 2'),
  (5, 'if not (a):'),
  (6, 'pass'),
  (7, 'return (min(a[:4], é=True) - 0.5)'),
  (7, 'return min(a[:4]) + 0.5'),
  (7, 'return max(a[:4], é=True) + 0.5'),
  (7, 'return min(a[:], é=True) + 0.5'),
  (7, 'return min(a[:5], é=True) + 0.5'),
  (7, 'return min(a[:4], é=False) + 0.5'),
  (7, 'return min(a[:4], é=True) + 1.0'),
]


def test_mutants_are_small_and_parse(tmp_path):
  file, lines = tmp_path / 'a.py', SOURCE.splitlines()
  file.write_text(SOURCE)
  found = [*mutations.of_file(file)]
  assert [(line, new) for line, _, new, _ in found] == WANTED
  for line, old, new, text in found:
    compile(text, 'a', 'exec')
    assert old == lines[line - 1].strip()
    changed = lines[line - 1].replace(old, new)
    assert text.decode().splitlines() == [
      changed if i == line else x for i, x in enumerate(lines, 1)
    ]
