"""The local backend: trains and serves on this machine. Importing it loads no torch."""

from art_local.backend import LocalBackend
from art_local.vllm_server import VllmServer

__all__ = ["LocalBackend", "VllmServer"]
