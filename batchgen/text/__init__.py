"""Between text and tokens: chat templates, encoding, incremental decoding, stop strings."""
