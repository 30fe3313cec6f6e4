"""The books: the only code of the project that touches the frontend's files and metric sinks. Private."""
