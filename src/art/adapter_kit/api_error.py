"""Errors in the shape that OpenAI clients understand."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer other than 200.

    Args:
        status: HTTP status.
        message: What is wrong and what to do.
        param: The request's field that is at fault.
        code: Machine-readable cause, such as `model_not_found`.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        # It may quote the request, in which JSON can spell what is no Unicode text.
        self.message = message.encode(errors="backslashreplace").decode()
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}
