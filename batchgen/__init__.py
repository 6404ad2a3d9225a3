"""Offline batch inference with language models: a file of requests in, Arrow files out."""
