"""What adapter authors share, free of torch: turn merging, advantages, the OpenAI-compatible gateway."""
