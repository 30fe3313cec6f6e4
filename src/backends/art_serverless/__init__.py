"""The serverless adapter. Its place is reserved; this version does not ship it."""
