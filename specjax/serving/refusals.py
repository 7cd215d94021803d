"""What is refused, as the OpenAI API says it."""

from typing import Any

_KINDS = {
  401: 'authentication_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
}


class Refused(Exception):
  """A request that is not answered.

  Attributes:
    status: of HTTP.
    param: the field of the request that is wrong; None where none is.
    code: a word for programs; None where the API has none.
  """

  def __init__(
    self,
    message: str,
    param: str | None = None,
    status: int = 400,
    code: str | None = None,
  ):
    super().__init__(message)
    self.param, self.status, self.code = param, status, code

  @property
  def body(self) -> dict[str, Any]:
    kind = 'server_error' if self.status >= 500 else 'invalid_request_error'
    return {
      'error': {
        'message': str(self),
        'type': _KINDS.get(self.status, kind),
        'param': self.param,
        'code': self.code,
      }
    }


def of_field(name: str, message: str) -> Refused:
  """A refusal of a field, which its message begins with."""
  return Refused(f'{name} {message}', name)
