"""The conformance suite for backends. Its place is reserved; this version does not ship it."""
