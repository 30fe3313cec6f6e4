"""Every error that `art` raises on purpose.

```
ArtError
├── ConfigurationError (ValueError)      a name, path, option or keyword that cannot work
│   ├── MissingDependencyError (ImportError)  an extra that is not installed
│   ├── NotRegisteredError               the model has no backend yet
│   └── InvalidBackendError (TypeError)  a backend without the two methods, or with malformed ones
├── InvalidTrajectoriesError (ValueError)  what was passed cannot be logged or trained
│   └── UntrainableTrajectoryError       a trajectory lacks the tokens or logprobs of its model turns
├── LogError (OSError)                   a file of the books could not be written or read
├── BackendError (RuntimeError)          the backend could not do its work
│   ├── TrainingError                    a train call failed
│   ├── InferenceError                   the inference endpoint died or never came up
│   ├── CheckpointDeletionError          some checkpoint files could not be deleted
│   └── UnsupportedByBackend (NotImplementedError)  an optional capability that the backend lacks
├── StepMismatchError (RuntimeError)     the books and the backend disagree about the step
└── ModelBusy (RuntimeError)             another process is training the same model directory
```

Each class also inherits the standard error that it stands beside, so code that catches `ValueError` or
`RuntimeError` goes on working. All of them can be pickled: their arguments are their message.
"""


class ArtError(Exception):
    """Base of every error that `art` raises on purpose."""


class ConfigurationError(ArtError, ValueError):
    """Raised when a name, path, option or keyword cannot work."""


class MissingDependencyError(ConfigurationError, ImportError):
    """Raised when a feature needs an extra that is not installed; the message names the extra."""


class NotRegisteredError(ConfigurationError):
    """Raised when a call needs a backend and the model was not registered with one."""


class InvalidBackendError(ConfigurationError, TypeError):
    """Raised when a backend lacks one of the two methods of the protocol, or has it in the wrong shape."""


class InvalidTrajectoriesError(ArtError, ValueError):
    """Raised when what was passed cannot be logged or trained; the message tells what was written all the same."""


class UntrainableTrajectoryError(InvalidTrajectoriesError):
    """Raised when a trajectory lacks the token ids or logprobs of its model turns."""


class LogError(ArtError, OSError):
    """Raised when a file of the books could not be written or read."""


class BackendError(ArtError, RuntimeError):
    """Raised when a backend could not do its work."""


class TrainingError(BackendError):
    """Raised when a train call failed in the backend."""


class InferenceError(BackendError):
    """Raised when an inference endpoint died, never came up, or refused a checkpoint."""


class CheckpointDeletionError(BackendError):
    """Raised after a deletion in which some checkpoints could not be deleted; the others are gone."""


class UnsupportedByBackend(BackendError, NotImplementedError):  # noqa: N818 - reads as a sentence where it is raised
    """Raised when an optional capability is asked of a backend that does not have it."""


class StepMismatchError(ArtError, RuntimeError):
    """Raised with `on_step_mismatch="error"` when the books and the backend disagree about the step."""


class ModelBusy(ArtError, RuntimeError):  # noqa: N818 - a state of the model, told in two words
    """Raised when another process is training or deleting in the same model directory."""
