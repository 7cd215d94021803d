"""Errors that users cause; every other error is a bug, with a traceback."""

import contextlib
import os
import pathlib
from collections.abc import Iterator


class UserError(ValueError):
  """A mistake that a user can mend.

  The message names the field, its value and the remedy. Programs print it in
  one line and exit with status 1.
  """


def need(condition, message: str) -> None:
  """Raises a UserError with the message where a condition fails."""
  if not condition:
    raise UserError(message)


@contextlib.contextmanager
def blame(
  before: str = '', kind: type[UserError] = UserError
) -> Iterator[None]:
  """Turns a ValueError of the library into a UserError.

  Use it only around calls that check values of a user: any other ValueError is
  a bug.

  Args:
    before: precedes the message: the field.
    kind: of the error that it becomes.
  """
  try:
    yield
  except ValueError as error:
    raise kind(f'{before}{error}') from error


@contextlib.contextmanager
def writing(field: str, path: str | os.PathLike) -> Iterator[None]:
  """Turns an OSError into a UserError that names the field of a folder.

  The error of a full disk names no path, so `path` is named instead.
  """
  try:
    yield
  except OSError as error:
    place = error.filename or path
    raise UserError(
      f'{field}: {place} cannot be used ({error.strerror or error}); '
      f'{remedy(error)}, or choose another folder'
    ) from error


def first_line(error: BaseException) -> str:
  """Returns the first line of the message of an error of other code."""
  return (str(error).strip() or repr(error)).splitlines()[0]


def remedy(error: OSError) -> str:
  """Returns what helps against an error of the system."""
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
