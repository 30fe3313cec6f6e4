"""A toy backend for `art`."""

from art_toy.backend import ToyBackend

__all__ = ["ToyBackend"]
