"""What checks look with and reach in with: streams that break, processes that are killed, states to compare."""
