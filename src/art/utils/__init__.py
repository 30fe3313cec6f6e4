"""Small helpers by upstream's names."""

from art.utils.iterate_dataset import iterate_dataset
from art.utils.limit_concurrency import limit_concurrency
from art.utils.retry import retry

__all__ = ["iterate_dataset", "limit_concurrency", "retry"]
