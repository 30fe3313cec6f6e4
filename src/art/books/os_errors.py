"""Turns an operating-system error on a file of the books into one that says what to do."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from art.errors import LogError

if TYPE_CHECKING:
    from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some of your disk quota",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "make the file system writable, or choose another base_path",
    errno.EACCES: "give this user access to it, or choose another base_path",
    errno.EPERM: "give this user access to it, or choose another base_path",
    errno.EEXIST: "a file, or a link to nothing, stands where a directory belongs; move it aside",
    errno.EISDIR: "a directory stands in the way; move it aside",
    errno.ENOTDIR: "a file stands where a directory belongs; move it aside",
}


def log_error(action: str, path: Path, error: OSError) -> LogError:
    """Build the error for a failed `action` ("write", "read", "lock") on `path`."""
    advice = _ADVICE.get(error.errno or 0, "check the disk and the path")
    return LogError(f"could not {action} {path}: {error.strerror or error}; {advice}")
