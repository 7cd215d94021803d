"""What users cause, told from bugs: only the latter end in a traceback."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


class UserError(ValueError):
  """What a user can mend; the message names it, its value and the remedy.

  Every other error is a bug. `command` prints these in one line.
  """


def need(condition, message: str) -> None:
  """Raises a UserError with the message where a condition fails."""
  if not condition:
    raise UserError(message)


@contextlib.contextmanager
def blame(before: str = '') -> Iterator[None]:
  """Makes a UserError of what a documented check of the library refuses.

  Only for calls that do nothing but check values of a user: a ValueError of
  anything else is a bug.

  Args:
    before: of the message: the field.
  """
  try:
    yield
  except ValueError as error:
    raise UserError(f'{before}{error}') from error


@contextlib.contextmanager
def writing(field: str, path: str | os.PathLike) -> Iterator[None]:
  """Names the field of a folder where it cannot be read or written.

  A full disk is seen while something is written, and says no path.
  """
  try:
    yield
  except OSError as error:
    place = error.filename or path
    raise UserError(
      f'{field}: {place} cannot be used ({error.strerror or error}); '
      f'{remedy(error)}, or choose another folder'
    ) from error


def remedy(error: OSError) -> str:
  """What helps against an error of the system."""
  match error:
    case FileExistsError() | NotADirectoryError():
      return 'move the file that is in the way of a folder'
    case IsADirectoryError():
      return 'name a file instead of a folder'
    case FileNotFoundError():
      return 'check the path'
    case PermissionError():
      return 'allow it for this user'
  return 'see that the disk has room and can be written'


def install(extra: str) -> str:
  """Returns the command that installs an extra: of a checkout or a wheel."""
  is_checkout = (pathlib.Path(__file__).parents[1] / 'setup.cfg').exists()
  what = f"-e '.[{extra}]'" if is_checkout else f"'specjax[{extra}]'"
  return f'pip install {what}'
