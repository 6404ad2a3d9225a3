"""The Python API: `batchgen.Engine`. Importing it loads neither torch nor pyarrow; a model is loaded at first use."""
