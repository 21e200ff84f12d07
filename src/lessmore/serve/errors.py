"""What goes wrong, as a status and a typed body: `{"error": {"type", "message", "remedy"}}`."""

from __future__ import annotations

from typing import Any

from lessmore.data.decoder import DecoderError
from lessmore.errors import ConfigError, ImageError, ImageSizeError, LessmoreError, NonFiniteError, StateError


class ServeError(LessmoreError):
    """A request that is not answered."""

    status, type = 500, "internal"

    def __init__(self, message: str, remedy: str, retry_after: int | None = None) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message, self.remedy, self.retry_after = message, remedy, retry_after


class RequestError(ServeError):
    """The request makes no sense."""

    status, type = 422, "invalid_request"


class UnauthorisedError(ServeError):
    """There is no key, or nobody knows it."""

    status, type = 401, "unauthorised"


class ForbiddenError(ServeError):
    """The key may not do this."""

    status, type = 403, "forbidden"


class UnknownStreamError(ServeError):
    """There is no such stream, or it belongs to somebody else."""

    status, type = 404, "unknown_stream"


class UnknownModelError(ServeError):
    """The server has another model."""

    status, type = 404, "unknown_model"


class NoPageFileError(ServeError):
    """The live page has no such file."""

    status, type = 404, "not_found"


class SlowBodyError(ServeError):
    """The client stopped in the middle of its body."""

    status, type = 408, "slow_body"


class StreamExistsError(ServeError):
    """The id of a new stream is taken."""

    status, type = 409, "stream_exists"


class DamagedStreamError(ServeError):
    """What is stored of a stream cannot be used."""

    status, type = 409, "damaged_stream"


class TooLargeError(ServeError):
    """The body is larger than allowed."""

    status, type = 413, "too_large"


class MediaTypeError(ServeError):
    """The body is of a kind that this address does not take."""

    status, type = 415, "unsupported_media_type"


class BusyError(ServeError):
    """Too much is waiting already."""

    status, type = 429, "busy"


class UnavailableError(ServeError):
    """The server, its model or its store cannot answer now."""

    status, type = 503, "unavailable"


class TakenOverError(UnavailableError):
    """Another server has the stream now; this one may take it back with the next image."""


class DeadlineError(ServeError):
    """The image waited longer than the client allowed; it was not adapted to."""

    status, type = 504, "deadline"


STATUS: dict[type[LessmoreError], tuple[int, str]] = {
    ImageSizeError: (413, "image_too_large"),
    ImageError: (422, "broken_image"),
    NonFiniteError: (422, "non_finite"),
    StateError: (422, "refused_state"),
    ConfigError: (422, "invalid_settings"),
    DecoderError: (503, "unavailable"),
}
"""Status and type of the library's own errors; the first that fits."""


def status_of(error: Exception) -> tuple[int, str]:
    """Status and type of an error."""
    if isinstance(error, ServeError):
        return error.status, error.type
    return next((known for kind, known in STATUS.items() if isinstance(error, kind)), (500, "internal"))


def error_body(error: Exception) -> dict[str, Any]:
    """The body that a client gets."""
    status, kind = status_of(error)
    if isinstance(error, ServeError):
        message, remedy = error.message, error.remedy
    elif status == 500:
        message, remedy = "the server failed", "report it with the request id and the server's log"
    else:
        message, _, remedy = str(error).rpartition("; ")
        message = message or remedy
    return {"error": {"type": kind, "message": message, "remedy": remedy}}
