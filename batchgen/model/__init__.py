"""The decoder, its weights and its runner."""
