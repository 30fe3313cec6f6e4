"""What runs in vLLM's own processes, with the interpreter that has vLLM: by path, not as part of this package."""
