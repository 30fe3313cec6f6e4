"""Rules as pure functions of values: metrics, learning rate, retention. Private."""
