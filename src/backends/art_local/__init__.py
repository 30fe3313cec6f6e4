"""The local backend: trains and serves on this machine. Importing it loads no torch."""

from art_local.backend import LocalBackend

__all__ = ["LocalBackend"]
