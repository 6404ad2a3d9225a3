"""The mind of the engine: sequences, blocks, scheduling. Standard library only."""
