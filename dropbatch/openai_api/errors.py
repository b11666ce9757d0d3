"""Errors as OpenAI's API answers them.

A status, and an object with message, type, param and code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropbatch.errors import NotFound, NotPermitted

if TYPE_CHECKING:
    from dropbatch.errors import Error

SERVER_ERROR = 500


class ApiError(Exception):
    """A request that is not carried out.

    Attributes:
        status: the HTTP status.
        message: what is wrong and what to do.
        param: the member or parameter at fault.
        code: a word for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The response's object."""
        type_ = "server_error" if self.status >= SERVER_ERROR else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": type_,
                "param": self.param,
                "code": self.code,
            }
        }


def no_such(kind: str, its_id: str, param: str = "id") -> ApiError:
    """The error for an unknown file or batch."""
    return ApiError(404, f"No such {kind} object: {its_id[:100]}", param, "not_found")


def of_library(error: Error) -> ApiError:
    """The error for one of the library's.

    AWS failed or denied a call, which is no fault of the request.
    """
    if isinstance(error, NotFound):
        return ApiError(404, str(error), None, "not_found")
    if isinstance(error, NotPermitted):
        return ApiError(SERVER_ERROR, str(error), None, "not_permitted")
    return ApiError(503, str(error), None, "service_unavailable")
